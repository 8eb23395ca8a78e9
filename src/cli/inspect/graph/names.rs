//! Names of values in a section of the forward pass.

use std::collections::HashMap;

use octavo_model::outline::{Operation, Outline};
use octavo_model::taps::{Numbering, numbered};

/// Name of a layer's input, as in llama.cpp's sources.
const INPUT: &str = "inpL";

/// Names of values, by their numbers.
pub(super) struct Names(HashMap<u32, String>);

impl Names {
    /// Names the values of a graph as llama.cpp does, and the unnamed values of these operations by
    /// counting. A layer's input without a name is called inpL.
    pub(super) fn new(outline: &Outline, section: &[&Operation], layer: Option<usize>) -> Names {
        let all = outline.operations();
        let named = all.filter_map(|op| Some((op.value, op.name?)));
        let named = named.map(|(value, tap)| (value, numbered(tap, tap.nth)));
        let mut names: HashMap<u32, String> = named.collect();
        if let Some(input) = layer.and_then(|layer| outline.layer_input(layer)) {
            names.entry(input).or_insert_with(|| INPUT.to_owned());
        }
        let unnamed = section.iter().filter(|op| op.name.is_none());
        let unnamed = unnamed.filter(|op| op.width > 0);
        names.extend(unnamed.zip(1..).map(|(op, n)| (op.value, format!("%{n}"))));
        Names(names)
    }

    /// Does the same for the first of several equal layers, with N for its number.
    pub(super) fn of_any_layer(outline: &Outline, section: &[&Operation], first: usize) -> Names {
        let mut names = Names::new(outline, section, Some(first));
        let input = outline.layer_input(first);
        names.0.extend(input.map(|input| (input, INPUT.to_owned())));
        let mut taps = Numbering::default();
        for op in section {
            let Some(tap) = op.name else {
                continue;
            };
            let name = match tap.layer {
                Some(_) => format!("{}-N", tap.name),
                None => tap.name.to_owned(),
            };
            let tap = taps.next(name, None);
            names.0.insert(op.value, numbered(&tap, tap.nth));
        }
        names
    }

    /// Returns the name of a value, or its number in the graph.
    pub(super) fn of(&self, value: u32) -> String {
        let name = self.0.get(&value).cloned();
        name.unwrap_or_else(|| format!("value {value}"))
    }
}
