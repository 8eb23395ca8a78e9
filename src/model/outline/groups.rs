//! Layers that are equal but for their numbers.

use super::{Operation, Outline, Parameter, Setting};

/// Layers with the same operations, whose weights may differ in type and whose constant factors in
/// value.
#[derive(Clone, Debug, PartialEq)]
pub struct Group<'a> {
    /// Numbers of the layers, ascending.
    pub layers: Vec<usize>,
    /// `[operation][layer]`: each operation in all of these layers. Row selections are left out of
    /// a group of several layers.
    pub operations: Vec<Vec<&'a Operation>>,
    /// Layer that selects rows, and the number of operations before it does, where row selections
    /// are left out.
    pub selection: Option<(usize, usize)>,
}

/// Source of an operation's input.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    /// Result of the operation with this number in the layer.
    Own(usize),
    /// Input of the layer.
    Input,
    /// Another value, by its number in the graph.
    Outside(u32),
}

/// An operation without all that differs between equal layers.
#[derive(Debug, PartialEq)]
struct Pattern<'a> {
    op: &'static str,
    name: Option<&'static str>,
    inputs: Vec<Source>,
    /// Layer whose keys and values are read, if it is another one.
    cache: Option<usize>,
    /// Names, shapes and first rows.
    weights: Vec<(String, &'a [usize], Option<usize>)>,
    parameters: Vec<&'a Parameter>,
    width: usize,
    parts: usize,
}

/// Returns the name of a layer's tensor with N in place of its number.
pub fn of_any_layer(name: &str, layer: usize) -> String {
    name.replace(&format!("blk.{layer}."), "blk.N.")
}

impl Outline {
    /// Returns the layers in groups of equal ones, in the order of their first layers.
    pub fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<(Vec<Pattern<'_>>, Vec<usize>)> = Vec::new();
        for layer in 0..self.layers.len() {
            let pattern = self.pattern(layer);
            match groups.iter_mut().find(|(known, _)| *known == pattern) {
                Some((_, layers)) => layers.push(layer),
                None => groups.push((pattern, vec![layer])),
            }
        }
        let groups = groups.into_iter().map(|(_, layers)| self.group(layers));
        groups.collect()
    }

    fn group(&self, layers: Vec<usize>) -> Group<'_> {
        let is_alone = layers.len() == 1;
        let retained = |layer: usize| {
            let all = self.layers[layer].iter();
            all.filter(move |op| is_alone || !selects(op))
        };
        let n = layers.first().map_or(0, |first| retained(*first).count());
        let mut operations = vec![Vec::new(); n];
        for layer in &layers {
            for (row, op) in operations.iter_mut().zip(retained(*layer)) {
                row.push(op);
            }
        }
        let mut selections = layers.iter().filter_map(|layer| {
            let at = self.layers[*layer].iter().position(selects)?;
            Some((*layer, at))
        });
        Group {
            selection: selections.next().filter(|_| !is_alone),
            layers,
            operations,
        }
    }

    fn pattern(&self, layer: usize) -> Vec<Pattern<'_>> {
        let input = self.layer_input(layer);
        let mut own: Vec<(u32, Source)> = Vec::new();
        let mut patterns = Vec::new();
        for op in &self.layers[layer] {
            let source = |value: &u32| match own.iter().rev().find(|(v, _)| v == value) {
                Some((_, source)) => *source,
                None if Some(*value) == input => Source::Input,
                None => Source::Outside(*value),
            };
            let inputs: Vec<Source> = op.inputs.iter().map(source).collect();
            if selects(op) {
                own.extend(inputs.into_iter().map(|source| (op.value, source)));
                continue;
            }
            own.push((op.value, Source::Own(patterns.len())));
            let is_outside = inputs.iter().all(|i| matches!(i, Source::Outside(_)));
            let differs = |p: &Parameter| match (op.op, p.name, &p.value) {
                ("scale", "factor", _) => true,
                // a part for each layer of a value that all layers read
                ("slice", "from", Setting::Count(from)) => is_outside && *from == layer * op.width,
                _ => false,
            };
            let weights = op.weights.iter();
            patterns.push(Pattern {
                op: op.op,
                name: op.name.map(|tap| tap.name),
                cache: op.cache.filter(|cache| *cache != layer),
                weights: weights
                    .map(|w| (of_any_layer(&w.name, layer), &w.shape[..], w.first_row))
                    .collect(),
                parameters: op.parameters.iter().filter(|p| !differs(p)).collect(),
                width: op.width,
                parts: op.parts,
                inputs,
            });
        }
        patterns
    }
}

fn selects(op: &Operation) -> bool {
    op.op == "select_rows"
}
