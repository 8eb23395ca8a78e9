//! Writes a template anew with its expensive operations guarded.
//!
//! minijinja counts instructions, but one instruction can double a string. Neither operators nor
//! text that is captured into a variable can be intercepted, so the parsed template is printed
//! again with calls around operands: `a + b` becomes `flat(a)+flat(b)`, which charge the budget and
//! return their argument, and literal text becomes an emitted string, which the formatter charges.
//! Lines are kept, so messages name the right one.

use std::fmt::Write;

use minijinja::machinery::ast::{
    BinOpKind, CallArg, CompareOpKind, Expr, Macro, Stmt, UnaryOpKind,
};
use minijinja::machinery::{Span, WhitespaceConfig, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::scan::{check_tokens, unsupported, without_generation_tags};

/// What the template is called in messages of the engine.
pub(super) const NAME: &str = "chat template";

/// Charges for everything in a value, however deep.
pub(super) const DEEP: &str = "__guard_deep";
/// Charges for a string's bytes or a sequence's elements.
pub(super) const FLAT: &str = "__guard_flat";
/// Charges for what finding one element costs.
pub(super) const ITEM: &str = "__guard_item";
/// Multiplies.
pub(super) const MUL: &str = "__guard_mul";
/// Takes a slice.
pub(super) const SLICE: &str = "__guard_slice";

/// How deep the parsed template may be.
const MAX_DEPTH: usize = 400;

/// Filters that look at a value but not into it.
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

/// The guarded form of a template.
pub(super) fn rewrite(source: &str) -> Result<String> {
    let source = without_generation_tags(source);
    // As transformers sets up Jinja.
    let whitespace = || WhitespaceConfig {
        keep_trailing_newline: false,
        lstrip_blocks: true,
        trim_blocks: true,
    };
    check_tokens(&source, whitespace())?;
    let template = parse(&source, NAME, SyntaxConfig, whitespace())?;
    let mut printer = Printer {
        out: String::with_capacity(source.len() * 2),
        line: 1,
        depth: 0,
    };
    printer.stmt(&template)?;
    Ok(printer.out)
}

struct Printer {
    out: String,
    line: usize,
    depth: usize,
}

impl Printer {
    fn put(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// Opens a tag on the line where the original has it.
    fn open(&mut self, tag: &str, span: Span) {
        self.put(tag);
        let line = usize::from(span.start_line);
        while self.line < line {
            self.put("\n");
            self.line += 1;
        }
        self.put(" ");
    }

    fn deeper<T>(&mut self, work: impl FnOnce(&mut Printer) -> Result<T>) -> Result<T> {
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
                self.put(" in (");
                self.expr(&s.iter)?;
                self.put(")");
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
                self.stmts(&s.body)?;
                self.put("{% endmacro %}");
            }
            Stmt::CallBlock(s) => {
                self.open("{%", s.span());
                self.put("call");
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
        let plain = declared.args.len() - declared.defaults.len();
        for (i, arg) in declared.args.iter().enumerate() {
            self.put(if i > 0 { ", " } else { "" });
            self.target(arg)?;
            if let Some(default) = i.checked_sub(plain).and_then(|i| declared.defaults.get(i)) {
                self.put(" = ");
                self.expr(default)?;
            }
        }
        self.put(")");
        Ok(())
    }

    /// What is assigned to: names, attributes, or several in parentheses.
    fn target(&mut self, target: &Expr<'_>) -> Result<()> {
        self.deeper(|p| match target {
            Expr::Var(s) => {
                p.put(s.id);
                Ok(())
            }
            Expr::GetAttr(s) => {
                p.target(&s.expr)?;
                p.put(".");
                p.put(s.name);
                Ok(())
            }
            Expr::List(s) => {
                p.put("(");
                for item in &s.items {
                    p.target(item)?;
                    p.put(",");
                }
                p.put(")");
                Ok(())
            }
            other => Err(unsupported(format!(
                "cannot assign to a {}",
                other.description()
            ))),
        })
    }

    fn guarded(&mut self, guard: &str, expr: &Expr<'_>) -> Result<()> {
        if matches!(expr, Expr::Const(_)) {
            return self.expr(expr);
        }
        self.put(guard);
        self.put("(");
        self.expr(expr)?;
        self.put(")");
        Ok(())
    }

    fn expr(&mut self, expr: &Expr<'_>) -> Result<()> {
        self.deeper(|p| match expr {
            Expr::Var(s) => {
                p.put(s.id);
                Ok(())
            }
            Expr::Const(s) => p.constant(&s.value),
            Expr::UnaryOp(s) => {
                p.put(match s.op {
                    UnaryOpKind::Not => "(not ",
                    UnaryOpKind::Neg => "(-",
                });
                p.expr(&s.expr)?;
                p.put(")");
                Ok(())
            }
            Expr::BinOp(s) => p.binary(s.op, &s.left, &s.right),
            Expr::IfExpr(s) => {
                p.put("(");
                p.expr(&s.true_expr)?;
                p.put(" if ");
                p.expr(&s.test_expr)?;
                if let Some(other) = &s.false_expr {
                    p.put(" else ");
                    p.expr(other)?;
                }
                p.put(")");
                Ok(())
            }
            Expr::Compare(s) => {
                p.put("(");
                p.guarded(DEEP, &s.expr)?;
                for op in &s.ops {
                    p.put(match op.op {
                        CompareOpKind::Eq => "==",
                        CompareOpKind::Ne => "!=",
                        CompareOpKind::Lt => "<",
                        CompareOpKind::Lte => "<=",
                        CompareOpKind::Gt => ">",
                        CompareOpKind::Gte => ">=",
                        CompareOpKind::In => " in ",
                        CompareOpKind::NotIn => " not in ",
                    });
                    p.guarded(DEEP, &op.expr)?;
                }
                p.put(")");
                Ok(())
            }
            _ => p.postfix(expr),
        })
    }

    fn binary(&mut self, op: BinOpKind, left: &Expr<'_>, right: &Expr<'_>) -> Result<()> {
        let (text, guard) = match op {
            BinOpKind::Mul => {
                self.put(MUL);
                self.put("(");
                self.expr(left)?;
                self.put(",");
                self.expr(right)?;
                self.put(")");
                return Ok(());
            }
            BinOpKind::ScAnd => (" and ", None),
            BinOpKind::ScOr => (" or ", None),
            BinOpKind::Sub => ("-", None),
            BinOpKind::Div => ("/", None),
            BinOpKind::FloorDiv => ("//", None),
            BinOpKind::Rem => ("%", None),
            BinOpKind::Pow => ("**", None),
            BinOpKind::Add => ("+", Some(FLAT)),
            BinOpKind::Concat => ("~", Some(DEEP)),
            BinOpKind::Eq => ("==", Some(DEEP)),
            BinOpKind::Ne => ("!=", Some(DEEP)),
            BinOpKind::Lt => ("<", Some(DEEP)),
            BinOpKind::Lte => ("<=", Some(DEEP)),
            BinOpKind::Gt => (">", Some(DEEP)),
            BinOpKind::Gte => (">=", Some(DEEP)),
            BinOpKind::In => (" in ", Some(DEEP)),
        };
        self.put("(");
        for (i, operand) in [left, right].into_iter().enumerate() {
            self.put(if i > 0 { text } else { "" });
            match guard {
                Some(guard) => self.guarded(guard, operand)?,
                None => self.expr(operand)?,
            }
        }
        self.put(")");
        Ok(())
    }

    fn postfix(&mut self, expr: &Expr<'_>) -> Result<()> {
        match expr {
            Expr::Slice(s) => {
                self.put(SLICE);
                self.put("(");
                self.expr(&s.expr)?;
                for bound in [&s.start, &s.stop, &s.step] {
                    self.put(",");
                    match bound {
                        Some(bound) => self.expr(bound)?,
                        None => self.put("none"),
                    }
                }
                self.put(")");
            }
            Expr::Filter(s) => match &s.expr {
                Some(value) => {
                    let guard = if SHALLOW_FILTERS.contains(&s.name) {
                        FLAT
                    } else {
                        DEEP
                    };
                    self.put("(");
                    self.guarded(guard, value)?;
                    self.put("|");
                    self.put(s.name);
                    self.args(&s.args, DEEP)?;
                    self.put(")");
                }
                None => return Err(unsupported("a filter without a value")),
            },
            Expr::Test(s) => {
                let guard = if DEEP_TESTS.contains(&s.name) {
                    DEEP
                } else {
                    FLAT
                };
                self.put("(");
                self.guarded(guard, &s.expr)?;
                self.put(" is ");
                self.put(s.name);
                self.args(&s.args, guard)?;
                self.put(")");
            }
            Expr::GetAttr(s) => {
                self.operand(&s.expr)?;
                self.put(".");
                self.put(s.name);
            }
            Expr::GetItem(s) => {
                self.guarded(ITEM, &s.expr)?;
                self.put("[");
                self.expr(&s.subscript_expr)?;
                self.put("]");
            }
            Expr::Call(s) => self.call(&s.expr, &s.args)?,
            Expr::List(s) => {
                self.put("[");
                for item in &s.items {
                    self.guarded(DEEP, item)?;
                    self.put(",");
                }
                self.put("]");
            }
            Expr::Map(s) => {
                self.put("{");
                for (key, value) in s.keys.iter().zip(&s.values) {
                    self.guarded(DEEP, key)?;
                    self.put(":");
                    self.guarded(DEEP, value)?;
                    self.put(",");
                }
                self.put("}");
            }
            other => return Err(unsupported(format!("unexpected {}", other.description()))),
        }
        Ok(())
    }

    /// Something before a dot. A number needs parentheses there; everything else brings its own.
    fn operand(&mut self, expr: &Expr<'_>) -> Result<()> {
        let number = matches!(expr, Expr::Const(c) if c.value.kind() == ValueKind::Number);
        self.put(if number { "(" } else { "" });
        self.expr(expr)?;
        self.put(if number { ")" } else { "" });
        Ok(())
    }

    fn call(&mut self, callee: &Expr<'_>, args: &[CallArg<'_>]) -> Result<()> {
        // A method of a string costs what the string is long; functions guard themselves and macros
        // pay as they write.
        let guard = match callee {
            Expr::GetAttr(s) => {
                // The engine's `loop.cycle` divides by the number of its arguments.
                if s.name == "cycle" && !matches!(args.first(), Some(CallArg::Pos(_))) {
                    return Err(unsupported("cycle needs an argument"));
                }
                self.guarded(FLAT, &s.expr)?;
                self.put(".");
                self.put(s.name);
                DEEP
            }
            other => {
                self.operand(other)?;
                FLAT
            }
        };
        self.put("(");
        self.arg_list(args, guard)?;
        self.put(")");
        Ok(())
    }

    /// Arguments in parentheses, if there are any.
    fn args(&mut self, args: &[CallArg<'_>], guard: &str) -> Result<()> {
        if args.is_empty() {
            return Ok(());
        }
        self.put("(");
        self.arg_list(args, guard)?;
        self.put(")");
        Ok(())
    }

    fn arg_list(&mut self, args: &[CallArg<'_>], guard: &str) -> Result<()> {
        for (i, arg) in args.iter().enumerate() {
            self.put(if i > 0 { ", " } else { "" });
            let value = match arg {
                CallArg::Pos(value) => value,
                CallArg::Kwarg(name, value) => {
                    self.put(name);
                    self.put("=");
                    value
                }
                CallArg::PosSplat(value) => {
                    self.put("*");
                    value
                }
                CallArg::KwargSplat(value) => {
                    self.put("**");
                    value
                }
            };
            self.guarded(guard, value)?;
        }
        Ok(())
    }

    /// `filter a(1)|b`: filters whose value is the text of a block.
    fn filter_chain(&mut self, chain: &Expr<'_>) -> Result<()> {
        self.deeper(|p| {
            let Expr::Filter(s) = chain else {
                return Err(unsupported("a filter was expected"));
            };
            if let Some(before) = &s.expr {
                p.filter_chain(before)?;
                p.put("|");
            }
            p.put(s.name);
            p.args(&s.args, DEEP)
        })
    }

    fn constant(&mut self, value: &Value) -> Result<()> {
        match value.kind() {
            ValueKind::None => self.put("none"),
            ValueKind::Bool => self.put(if value.is_true() { "true" } else { "false" }),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Number if value.is_integer() => {
                // Writing to a String cannot fail.
                let _ = write!(self.out, "{value}");
            }
            ValueKind::Number => {
                let number = f64::try_from(value.clone())?;
                let _ = write!(self.out, "{number:?}");
            }
            kind => return Err(unsupported(format!("a constant of kind {kind}"))),
        }
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.put("\\\""),
                '\\' => self.put("\\\\"),
                '\n' => self.put("\\n"),
                '\r' => self.put("\\r"),
                '\t' => self.put("\\t"),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}
