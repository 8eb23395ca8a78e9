//! Grammars in llama.cpp's notation.

use octavo_grammar::{Demand, Rule};

use crate::support::{meets, refusal};

fn grammar(text: &str) -> Demand {
    let rule = Rule::of_grammar(text);
    assert_eq!(rule, Rule::Gbnf(text.to_owned()));
    Demand::from(rule)
}

#[test]
fn a_grammar_that_is_regular_is_held_exactly() {
    let text = "# greetings\nroot ::= greeting \" \" name+ tail?\n\
                greeting ::= \"hi\" | \"hi \\x41\" |\n  \"ho\"\n\
                name ::= [a-z-] | [^a-z!\\]\\n]\ntail ::= \"!\"{2,3} (\"?\" | )\n";
    let demand = grammar(text);
    for fine in ["hi a", "hi A bc-", "ho B\u{e4}!!", "hi x!!!?"] {
        assert!(meets(&demand, fine), "{fine}");
    }
    for wrong in ["hi", "ha a", "hi a!", "hi a!!!!", "hi ]"] {
        assert!(!meets(&demand, wrong), "{wrong}");
    }
}

#[test]
fn a_grammar_that_leads_back_to_itself_is_held() {
    let demand = grammar(
        "root ::= list\nlist ::= \"[\" ws (item (\",\" ws item)*)? \"]\" ws\n\
         item ::= list | string | [0-9]+ ws\nws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n\
         string ::= \"\\\"\" ([^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" [\"\\\\bfnrt])* \"\\\"\" ws\n",
    );
    for fine in ["[]", "[ 12 , [\"a \\\" b\"], []]", "[\"\"]"] {
        assert!(meets(&demand, fine), "{fine}");
    }
    for wrong in ["[", "[1", "[1,]", "[\"a]"] {
        assert!(!meets(&demand, wrong), "{wrong}");
    }
}

#[test]
fn what_is_no_grammar_is_told() {
    for (text, what) in [
        ("root ::= a", "found a"),
        ("root ::= \"a", "\""),
        ("root ::= [a", "]"),
        ("root ::= (\"a\"", ")"),
        ("root ::= *", "repeat"),
        ("root ::= \"a\"{3,2}", "below its minimum"),
        ("root ::= \"a\"{9999}", "2000"),
        ("root ::= \"\\q\"", "escapes"),
        ("root ::= 'a'", "end of the line"),
        ("a ::= root ::=", "end of the line"),
    ] {
        let refusal_text = refusal(&grammar_of(text));
        assert!(refusal_text.contains(what), "{text}: {refusal_text}");
    }
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(5000), ")".repeat(5000));
    assert!(refusal(&grammar_of(&deep)).contains("groups"));
}

fn grammar_of(text: &str) -> Demand {
    Demand::from(Rule::Gbnf(text.to_owned()))
}

#[test]
fn lark_begins_at_another_rule() {
    let demand = Demand::from(Rule::of_grammar("start: \"a\" | \"root ::= b\"\n"));
    assert!(meets(&demand, "a"));
}
