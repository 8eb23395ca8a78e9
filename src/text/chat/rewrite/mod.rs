//! Rewrites a template with its expensive operations guarded.
//!
//! minijinja counts instructions, but one instruction can double a string. Neither operators nor
//! text captured into a variable can be intercepted, so the parsed template is printed again with
//! calls around operands: `a + b` becomes `flat(a)+flat(b)`, which charge the budget and return
//! their argument, and literal text becomes an emitted string, which the formatter charges. Line
//! numbers are preserved for error messages.

mod expr;
mod literal;

use std::collections::HashSet;

use minijinja::Error;
use minijinja::machinery::ast::{Macro, Stmt};
use minijinja::machinery::{Span, WhitespaceConfig, parse};
use minijinja::syntax::SyntaxConfig;

use super::scan::{check_tokens, unsupported, without_generation_tags};

/// Template name in the engine's messages.
pub(super) const NAME: &str = "chat template";

/// Charges a whole value, at any depth.
pub(super) const DEEP: &str = "__guard_deep";
/// Charges for a string's bytes or a sequence's elements.
pub(super) const FLAT: &str = "__guard_flat";
/// Charges the cost of finding one element.
pub(super) const ITEM: &str = "__guard_item";
/// Multiplies.
pub(super) const MUL: &str = "__guard_mul";
/// Adds numbers, strings or lists.
pub(super) const ADD: &str = "__guard_add";
/// Concatenates the texts of two values.
pub(super) const CONCAT: &str = "__guard_concat";
/// Computes the remainder of a division, or formats values into a string.
pub(super) const REM: &str = "__guard_rem";
/// Raises to a power.
pub(super) const POW: &str = "__guard_pow";
/// Divides.
pub(super) const DIV: &str = "__guard_div";
/// Divides and rounds down.
pub(super) const FLOOR_DIV: &str = "__guard_floor_div";
/// Makes a tuple.
pub(super) const TUPLE: &str = "__guard_tuple";
/// Makes a list that can be changed.
pub(super) const LIST: &str = "__guard_list";
/// Refuses values that cannot be iterated.
pub(super) const ITERATED: &str = "__guard_iterated";
/// Calls a method of strings, lists or dicts.
pub(super) const METHOD: &str = "__guard_method";
/// Reads an attribute with the name of a dict method.
pub(super) const ATTRIBUTE: &str = "__guard_attribute";
/// Marks an undefined argument of a macro, or removes the mark.
pub(super) const PASS: &str = "__guard_pass";
pub(super) const PASSED: &str = "__guard_passed";
/// Takes a slice.
pub(super) const SLICE: &str = "__guard_slice";

/// Deepest nesting of the parsed template.
const MAX_DEPTH: usize = 400;

/// Filters that do not look inside a value.
const SHALLOW_FILTERS: [&str; 16] = [
    "length", "count", "first", "last", "default", "d", "list", "items", "attr", "int", "float",
    "bool", "abs", "round", "safe", "trim",
];
/// Tests that compare whole values.
const DEEP_TESTS: [&str; 17] = [
    "eq",
    "equalto",
    "==",
    "ne",
    "!=",
    "lt",
    "lessthan",
    "<",
    "le",
    "<=",
    "gt",
    "greaterthan",
    ">",
    "ge",
    ">=",
    "in",
    "sameas",
];

type Result<T> = std::result::Result<T, Error>;

/// Returns the guarded form of a template.
pub(super) fn rewrite(source: &str) -> Result<String> {
    // Jinja reads every line break as a line feed.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = without_generation_tags(&source);
    // Same settings as in transformers.
    let whitespace = || WhitespaceConfig {
        keep_trailing_newline: false,
        lstrip_blocks: true,
        trim_blocks: true,
    };
    check_tokens(&source, whitespace())?;
    let template = parse(&source, NAME, SyntaxConfig, whitespace())?;
    let mut printer = Printer {
        out: String::with_capacity(source.len() * 2),
        source: &source,
        with_defaults: HashSet::new(),
        changes_lists: [".append(", ".pop("]
            .iter()
            .any(|call| source.contains(call)),
        line: 1,
        depth: 0,
    };
    printer.find_macros(std::slice::from_ref(&template));
    printer.stmt(&template)?;
    Ok(printer.out)
}

struct Printer<'s> {
    source: &'s str,
    /// Macros with a default for some argument.
    with_defaults: HashSet<String>,
    /// Whether there may be calls that change a list.
    changes_lists: bool,
    out: String,
    line: usize,
    depth: usize,
}

impl Printer<'_> {
    fn put(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// Opens a tag on the same line as the original.
    fn open(&mut self, tag: &str, span: Span) {
        self.put(tag);
        let line = usize::from(span.start_line);
        while self.line < line {
            self.put("\n");
            self.line += 1;
        }
        self.put(" ");
    }

    fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= MAX_DEPTH {
            return Err(unsupported(format!("nested more than {MAX_DEPTH} deep")));
        }
        self.depth += 1;
        let result = work(self);
        self.depth -= 1;
        result
    }

    fn stmts(&mut self, stmts: &[Stmt<'_>]) -> Result<()> {
        stmts
            .iter()
            .try_for_each(|stmt| self.deeper(|p| p.stmt(stmt)))
    }

    fn stmt(&mut self, stmt: &Stmt<'_>) -> Result<()> {
        match stmt {
            Stmt::Template(s) => self.stmts(&s.children),
            Stmt::EmitExpr(s) => {
                self.open("{{", s.span());
                self.expr(&s.expr)?;
                self.put(" }}");
                Ok(())
            }
            Stmt::EmitRaw(s) => {
                self.open("{{", s.span());
                self.string(s.raw);
                self.put(" }}");
                Ok(())
            }
            Stmt::ForLoop(s) => {
                self.open("{%", s.span());
                self.put("for ");
                self.target(&s.target)?;
                self.put(" in ");
                self.guarded(ITERATED, &s.iter)?;
                if let Some(filter) = &s.filter_expr {
                    self.put(" if ");
                    self.expr(filter)?;
                }
                self.put(if s.recursive { " recursive %}" } else { " %}" });
                self.stmts(&s.body)?;
                self.alternative(&s.else_body)?;
                self.put("{% endfor %}");
                Ok(())
            }
            Stmt::IfCond(s) => {
                self.open("{%", s.span());
                self.put("if ");
                self.expr(&s.expr)?;
                self.put(" %}");
                self.stmts(&s.true_body)?;
                self.alternative(&s.false_body)?;
                self.put("{% endif %}");
                Ok(())
            }
            _ => self.assigning_stmt(stmt),
        }
    }

    fn alternative(&mut self, body: &[Stmt<'_>]) -> Result<()> {
        if !body.is_empty() {
            self.put("{% else %}");
            self.stmts(body)?;
        }
        Ok(())
    }

    fn assigning_stmt(&mut self, stmt: &Stmt<'_>) -> Result<()> {
        match stmt {
            Stmt::Set(s) => {
                self.open("{%", s.span());
                self.put("set ");
                self.target(&s.target)?;
                self.put(" = ");
                self.expr(&s.expr)?;
                self.put(" %}");
            }
            Stmt::SetBlock(s) => {
                self.open("{%", s.span());
                self.put("set ");
                self.target(&s.target)?;
                if let Some(filter) = &s.filter {
                    self.put(" | ");
                    self.filter_chain(filter)?;
                }
                self.put(" %}");
                self.stmts(&s.body)?;
                self.put("{% endset %}");
            }
            Stmt::WithBlock(s) => {
                self.open("{%", s.span());
                self.put("with ");
                for (i, (target, value)) in s.assignments.iter().enumerate() {
                    self.put(if i > 0 { ", " } else { "" });
                    self.target(target)?;
                    self.put(" = ");
                    self.expr(value)?;
                }
                self.put(" %}");
                self.stmts(&s.body)?;
                self.put("{% endwith %}");
            }
            Stmt::FilterBlock(s) => {
                self.open("{%", s.span());
                self.put("filter ");
                self.filter_chain(&s.filter)?;
                self.put(" %}");
                self.stmts(&s.body)?;
                self.put("{% endfilter %}");
            }
            _ => return self.calling_stmt(stmt),
        }
        Ok(())
    }

    fn calling_stmt(&mut self, stmt: &Stmt<'_>) -> Result<()> {
        match stmt {
            Stmt::Macro(s) => {
                self.open("{%", s.span());
                self.put("macro ");
                self.put(s.name);
                self.macro_args(s)?;
                self.put(" %}");
                self.macro_defaults(s)?;
                self.stmts(&s.body)?;
                self.put("{% endmacro %}");
            }
            Stmt::CallBlock(s) => {
                self.open("{%", s.span());
                self.put("call");
                if !s.macro_decl.defaults.is_empty() {
                    return Err(unsupported("defaults of a call's arguments"));
                }
                self.macro_args(&s.macro_decl)?;
                self.put(" ");
                self.call(&s.call.expr, &s.call.args)?;
                self.put(" %}");
                self.stmts(&s.macro_decl.body)?;
                self.put("{% endcall %}");
            }
            Stmt::Do(s) => {
                self.open("{%", s.span());
                self.put("do ");
                self.call(&s.call.expr, &s.call.args)?;
                self.put(" %}");
            }
            Stmt::Continue(_) => self.put("{% continue %}"),
            Stmt::Break(_) => self.put("{% break %}"),
            Stmt::Include(_)
            | Stmt::Import(_)
            | Stmt::FromImport(_)
            | Stmt::Extends(_)
            | Stmt::Block(_) => {
                return Err(unsupported(
                    "other templates cannot be included, imported or extended",
                ));
            }
            _ => return Err(unsupported("a tag that chat templates have no use for")),
        }
        Ok(())
    }

    fn macro_args(&mut self, declared: &Macro<'_>) -> Result<()> {
        self.put("(");
        for (i, arg) in declared.args.iter().enumerate() {
            self.put(if i > 0 { ", " } else { "" });
            self.target(arg)?;
        }
        self.put(")");
        Ok(())
    }

    /// Sets defaults of missing arguments, in order: a default may refer to the arguments before
    /// it. The engine would also replace arguments given as undefined.
    fn macro_defaults(&mut self, declared: &Macro<'_>) -> Result<()> {
        if declared.defaults.is_empty() {
            return Ok(());
        }
        let plain = declared.args.len() - declared.defaults.len();
        for (i, arg) in declared.args.iter().enumerate() {
            self.put("{% set ");
            self.target(arg)?;
            self.put(" = ");
            let default = i.checked_sub(plain).and_then(|i| declared.defaults.get(i));
            if let Some(default) = default {
                self.put("(");
                self.expr(default)?;
                self.put(") if ");
                self.target(arg)?;
                self.put(" is undefined else ");
            }
            self.put(PASSED);
            self.put("(");
            self.target(arg)?;
            self.put(") %}");
        }
        Ok(())
    }

    fn find_macros(&mut self, stmts: &[Stmt<'_>]) {
        for stmt in stmts {
            match stmt {
                Stmt::Template(s) => self.find_macros(&s.children),
                Stmt::ForLoop(s) => self.find_macros(&s.body),
                Stmt::IfCond(s) => {
                    self.find_macros(&s.true_body);
                    self.find_macros(&s.false_body);
                }
                Stmt::Macro(s) => {
                    if !s.defaults.is_empty() {
                        self.with_defaults.insert(s.name.to_owned());
                    }
                    self.find_macros(&s.body);
                }
                _ => {}
            }
        }
    }
}
