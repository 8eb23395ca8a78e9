//! Rewrites expressions, with guards around operations that could grow without limit.

use std::fmt::Write;

use minijinja::Value;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{BinOpKind, CallArg, CompareOpKind, Expr, UnaryOpKind};
use minijinja::value::ValueKind;

use super::super::guard::{is_attribute, is_method};
use super::super::scan::unsupported;
use super::literal;
use super::{
    ADD, ATTRIBUTE, CONCAT, DEEP, DEEP_TESTS, DIV, FLAT, FLOOR_DIV, ITEM, LIST, METHOD, MUL, PASS,
    POW, Printer, REM, Result, SHALLOW_FILTERS, SLICE, TUPLE,
};

impl Printer<'_> {
    /// Writes an assignment target: names, attributes, or several in parentheses.
    pub(super) fn target(&mut self, target: &Expr<'_>) -> Result<()> {
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

    pub(super) fn guarded(&mut self, guard: &str, expr: &Expr<'_>) -> Result<()> {
        if matches!(expr, Expr::Const(_)) {
            return self.expr(expr);
        }
        self.put(guard);
        self.put("(");
        self.expr(expr)?;
        self.put(")");
        Ok(())
    }

    pub(super) fn expr(&mut self, expr: &Expr<'_>) -> Result<()> {
        self.deeper(|p| match expr {
            Expr::Var(s) => {
                p.put(s.id);
                Ok(())
            }
            Expr::Const(s) => {
                let span = s.span();
                let (start, end) = (span.start_offset as usize, span.end_offset as usize);
                let literal = p.source.get(start..end).and_then(literal::text);
                match literal.filter(|_| s.value.kind() == ValueKind::String) {
                    Some(text) => p.string(&text),
                    None => p.constant(&s.value)?,
                }
                Ok(())
            }
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

    pub(super) fn binary(
        &mut self,
        op: BinOpKind,
        left: &Expr<'_>,
        right: &Expr<'_>,
    ) -> Result<()> {
        let function = match op {
            BinOpKind::Mul => Some(MUL),
            BinOpKind::Add => Some(ADD),
            BinOpKind::Concat => Some(CONCAT),
            BinOpKind::Rem => Some(REM),
            BinOpKind::Pow => Some(POW),
            BinOpKind::Div => Some(DIV),
            BinOpKind::FloorDiv => Some(FLOOR_DIV),
            _ => None,
        };
        if let Some(function) = function {
            self.put(function);
            self.put("(");
            self.expr(left)?;
            self.put(",");
            self.expr(right)?;
            self.put(")");
            return Ok(());
        }
        let (text, guard) = match op {
            BinOpKind::Mul
            | BinOpKind::Add
            | BinOpKind::Concat
            | BinOpKind::Rem
            | BinOpKind::Pow
            | BinOpKind::Div
            | BinOpKind::FloorDiv => return Ok(()),
            BinOpKind::ScAnd => (" and ", None),
            BinOpKind::ScOr => (" or ", None),
            BinOpKind::Sub => ("-", None),
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
                // The engine would fold two constants into a bool.
                None if matches!(operand, Expr::Const(_)) => {
                    self.put(FLAT);
                    self.put("(");
                    self.expr(operand)?;
                    self.put(")");
                }
                None => self.expr(operand)?,
            }
        }
        self.put(")");
        Ok(())
    }

    pub(super) fn postfix(&mut self, expr: &Expr<'_>) -> Result<()> {
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
            Expr::GetAttr(s) => self.attribute(&s.expr, s.name)?,
            Expr::GetItem(s) => {
                self.guarded(ITEM, &s.expr)?;
                self.put("[");
                self.expr(&s.subscript_expr)?;
                self.put("]");
            }
            Expr::Call(s) => self.call(&s.expr, &s.args)?,
            Expr::List(s) => self.list(&s.items, s.span())?,
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

    fn attribute(&mut self, of: &Expr<'_>, name: &str) -> Result<()> {
        if is_attribute(name) {
            self.put(ATTRIBUTE);
            self.put("(");
            self.expr(of)?;
            self.put(",");
            self.string(name);
            self.put(")");
        } else {
            self.operand(of)?;
            self.put(".");
            self.put(name);
        }
        Ok(())
    }

    /// Writes a list or a tuple: in the engine, tuples are lists without a bracket.
    fn list(&mut self, items: &[Expr<'_>], span: Span) -> Result<()> {
        let start = span.start_offset as usize;
        let tuple = self.source.as_bytes().get(start) != Some(&b'[');
        let (function, open, close) = match (tuple, self.changes_lists) {
            (true, _) => (TUPLE, "(", ")"),
            (false, true) => (LIST, "(", ")"),
            (false, false) => ("", "[", "]"),
        };
        self.put(function);
        self.put(open);
        for item in items {
            self.guarded(DEEP, item)?;
            self.put(",");
        }
        self.put(close);
        Ok(())
    }

    /// Writes an operand before a dot. A number needs parentheses there; everything else has its
    /// own.
    pub(super) fn operand(&mut self, expr: &Expr<'_>) -> Result<()> {
        let number = matches!(expr, Expr::Const(c) if c.value.kind() == ValueKind::Number);
        self.put(if number { "(" } else { "" });
        self.expr(expr)?;
        self.put(if number { ")" } else { "" });
        Ok(())
    }

    pub(super) fn call(&mut self, callee: &Expr<'_>, args: &[CallArg<'_>]) -> Result<()> {
        // Methods of strings, lists and dicts, functions and macros charge the budget themselves.
        let guard = match callee {
            Expr::GetAttr(s) if is_method(s.name) => {
                self.put(METHOD);
                self.put("(");
                self.expr(&s.expr)?;
                self.put(",");
                self.string(s.name);
                if !args.is_empty() {
                    self.put(",");
                    self.arg_list(args, DEEP)?;
                }
                self.put(")");
                return Ok(());
            }
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
            Expr::Var(s) if self.with_defaults.contains(s.id) => {
                self.put(s.id);
                PASS
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

    /// Writes arguments in parentheses, if there are any.
    pub(super) fn args(&mut self, args: &[CallArg<'_>], guard: &str) -> Result<()> {
        if args.is_empty() {
            return Ok(());
        }
        self.put("(");
        self.arg_list(args, guard)?;
        self.put(")");
        Ok(())
    }

    pub(super) fn arg_list(&mut self, args: &[CallArg<'_>], guard: &str) -> Result<()> {
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

    /// Writes `filter a(1)|b`: filters applied to the text of a block.
    pub(super) fn filter_chain(&mut self, chain: &Expr<'_>) -> Result<()> {
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

    pub(super) fn constant(&mut self, value: &Value) -> Result<()> {
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

    pub(super) fn string(&mut self, text: &str) {
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
