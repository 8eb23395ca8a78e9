//! A section of the forward pass as lines of text.

use std::fmt::{Result, Write};

use octavo_model::outline::{Group, Operation, Outline, Parameter, Setting, of_any_layer};

use super::names::Names;

/// Operations in a row, each in one layer or in several equal ones.
pub(super) struct Section<'a> {
    /// `[operation][layer]`
    operations: Vec<Vec<&'a Operation>>,
    /// Layers that it stands for; none before and after the layers.
    layers: &'a [usize],
    names: Names,
    /// Layer that keeps fewer rows from one operation on, and the operations before it does.
    selection: Option<(usize, usize)>,
}

impl<'a> Section<'a> {
    /// Makes a section of one layer, or of what is before or after the layers.
    pub(super) fn new(
        outline: &Outline,
        operations: &'a [Operation],
        layers: &'a [usize],
    ) -> Section<'a> {
        let all: Vec<&Operation> = operations.iter().collect();
        Section {
            names: Names::new(outline, &all, layers.first().copied()),
            operations: all.into_iter().map(|op| vec![op]).collect(),
            layers,
            selection: None,
        }
    }

    /// Makes a section of several equal layers.
    pub(super) fn of_group(outline: &Outline, group: &'a Group<'a>) -> Section<'a> {
        let first: Vec<&Operation> = group.operations.iter().map(|all| all[0]).collect();
        Section {
            names: Names::of_any_layer(outline, &first, group.layers[0]),
            operations: group.operations.clone(),
            layers: &group.layers,
            selection: group.selection,
        }
    }

    /// Writes a title, and a line for each operation: result, shape and operation in columns.
    pub(super) fn write(&self, out: &mut String, title: &str) -> Result {
        let line =
            |all: &Vec<&Operation>| [self.result(all[0]), shape(all[0]), self.operation(all)];
        let lines: Vec<[String; 3]> = self.operations.iter().map(line).collect();
        let column = |n: usize| lines.iter().map(|line| line[n].chars().count()).max();
        let [names, shapes] = [0, 1].map(|n| column(n).unwrap_or(0));
        writeln!(out, "{title}")?;
        for (i, [name, shape, text]) in lines.iter().enumerate() {
            if let Some((layer, _)) = self.selection.filter(|(_, at)| *at == i) {
                let note = "computes only the rows whose outputs are wanted";
                writeln!(out, "  (from here on, layer {layer} {note})")?;
            }
            writeln!(out, "  {name:<names$}  {shape:<shapes$}  {text}")?;
        }
        Ok(())
    }

    fn result(&self, op: &Operation) -> String {
        match op.cache.filter(|_| op.width == 0) {
            Some(layer) => self.cache(layer),
            None => self.names.of(op.value),
        }
    }

    /// Returns the name of a layer's keys and values.
    fn cache(&self, layer: usize) -> String {
        match self.layers {
            [first, _, ..] if layer == *first => "cache N".to_owned(),
            _ => format!("cache {layer}"),
        }
    }

    /// Formats an operation with its operands; those of the first layer stand for the others'.
    fn operation(&self, all: &[&Operation]) -> String {
        let op = all[0];
        let values = op.inputs.iter().map(|value| self.names.of(*value));
        let reads = op.cache.filter(|_| op.width > 0);
        let cache = reads.map(|layer| self.cache(layer));
        let weights = (0..op.weights.len()).map(|i| self.weight(all, i));
        let operands: Vec<String> = values.chain(cache).chain(weights).collect();
        let mut parameters = (0..op.parameters.len()).map(|i| self.parameter(all, i));
        match (op.op, &operands[..]) {
            ("add" | "add_bias", [a, b]) => format!("{a} + {b}"),
            ("mul" | "mul_vector", [a, b]) => format!("{a} * {b}"),
            ("scale", [x]) => {
                let factor = parameters.next().unwrap_or_default();
                format!("{x} * {}", factor.trim_start_matches("factor "))
            }
            ("gate", [gate, up]) => match op.parameter("activation") {
                Some(Setting::Word("swiglu_oai")) => format!("swiglu_oai({gate}, {up})"),
                Some(Setting::Word(activation)) => format!("{activation}({gate}) * {up}"),
                _ => format!("gate({gate}, {up})"),
            },
            (name, _) => {
                let all: Vec<String> = operands.into_iter().chain(parameters).collect();
                format!("{name}({})", all.join(", "))
            }
        }
    }

    /// Formats weight `i`: name, types in all layers, shape and, of a part, the rows.
    fn weight(&self, all: &[&Operation], i: usize) -> String {
        let (op, weight) = (all[0], &all[0].weights[i]);
        let mut text = match (weight.first_row, weight.shape.last()) {
            (Some(first), Some(rows)) => format!("rows {first} to {} of ", first + rows - 1),
            _ => String::new(),
        };
        text += &match self.layers {
            [first, _, ..] => of_any_layer(&weight.name, *first),
            _ => weight.name.clone(),
        };
        let mut types: Vec<&str> = Vec::new();
        for ty in all.iter().filter_map(|op| op.weights[i].ty) {
            if !types.contains(&ty) {
                types.push(ty);
            }
        }
        if !types.is_empty() {
            text += &format!(" {}", types.join(" or "));
        }
        let dims: Vec<String> = weight.shape.iter().map(usize::to_string).collect();
        text += &match (op.op, &dims[..]) {
            ("matmul" | "expert_matmul", [cols, rows]) => format!(" [{cols} -> {rows}]"),
            ("expert_matmul", [cols, rows, experts]) => format!(" {experts} x [{cols} -> {rows}]"),
            _ => format!(" [{}]", dims.join(" x ")),
        };
        text
    }

    /// Formats parameter `i`, with all of its values where layers differ.
    fn parameter(&self, all: &[&Operation], i: usize) -> String {
        let Parameter { name, value } = &all[0].parameters[i];
        let values: Vec<&Setting> = all.iter().map(|op| &op.parameters[i].value).collect();
        if values.iter().all(|other| *other == value) {
            return parameter(name, value);
        }
        let counts = || values.iter().zip(self.layers);
        // only the layer's own part of a value differs with its number
        if let Some(Setting::Count(second)) = values.get(1)
            && let Some(each) = second.checked_div(self.layers[1])
            && counts().all(|(value, layer)| **value == Setting::Count(layer * each))
        {
            return format!("{name} {each} * N");
        }
        let numbers = || {
            values.iter().filter_map(|value| match value {
                Setting::Number(x) => Some(*x),
                _ => None,
            })
        };
        let least = numbers().fold(f32::INFINITY, f32::min);
        let most = numbers().fold(f32::NEG_INFINITY, f32::max);
        format!("{name} ({} to {} by layer)", number(least), number(most))
    }
}

/// Formats the numbers per row of a result, by head or expert where it has several.
fn shape(op: &Operation) -> String {
    match (op.width, op.parts) {
        (0, _) => String::new(),
        (width, 1) => format!("[{width}]"),
        (width, parts) => format!("[{parts} x {}]", width / parts),
    }
}

fn parameter(name: &str, value: &Setting) -> String {
    match value {
        Setting::Count(n) if name == "group" => format!("in groups of {n}"),
        Setting::Count(n) => format!("{name} {n}"),
        Setting::Counts(all) => {
            let all: Vec<String> = all.iter().map(usize::to_string).collect();
            format!("{name} {}", all.join("/"))
        }
        Setting::Number(x) if name == "scale" => format!("{name} {}", root(*x)),
        Setting::Number(x) => format!("{name} {}", number(*x)),
        Setting::Word(word) => format!("{name} {word}"),
        Setting::Flag(true) => name.to_owned(),
        Setting::Flag(false) => format!("not {name}"),
    }
}

/// Formats a number that is often one over the root of a width.
fn root(x: f32) -> String {
    let n = (x * x).recip().round();
    match n > 1.0 && n.is_finite() && 1.0 / n.sqrt() == x {
        true => format!("1/sqrt({n})"),
        false => number(x),
    }
}

/// Formats a number with few zeros.
fn number(x: f32) -> String {
    match x.abs() {
        0.0 | 1e-3..1e9 => x.to_string(),
        _ => format!("{x:e}"),
    }
}
