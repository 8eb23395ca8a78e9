//! Report of the choices of experts in two computations: the first place to look.

use octavo_analysis::diff::{Cause, Choice, LayerRouting, Routing, Tie};
use octavo_analysis::report::Page;

/// Names of the two sides, and texts about the side that runs with the other's experts.
pub(super) struct Sides {
    pub(super) a: &'static str,
    pub(super) b: &'static str,
    /// Statement for reports with --same-routing: which side ran with the experts of the other.
    pub(super) went_on: &'static str,
    /// Hint of how to get there.
    pub(super) hint: &'static str,
}

/// Sides of two executions.
pub(super) const EXECUTIONS: Sides = Sides {
    a: "A",
    b: "B",
    went_on: "B went on with the experts that A chose",
    hint: "--same-routing gives A's experts to B",
};

/// Sides of a model and a recording.
pub(super) const RECORDED: Sides = Sides {
    a: "ours",
    b: "theirs",
    went_on: "the model went on with the experts of the recording",
    hint: "--same-routing gives the recording's experts to the model",
};

/// Returns lines with the number of choices that differ, the first of them, and what that means for
/// the rest. `tensors` are those compared, in order; `token` returns the text of a position, if it
/// is known.
pub(super) fn lines(
    routing: &Routing,
    sides: &Sides,
    tensors: &[&str],
    token: &dyn Fn(usize) -> Option<String>,
) -> Vec<String> {
    let unrecorded = match routing.unrecorded {
        0 => String::new(),
        n => format!(" ({n} more were not recorded)"),
    };
    let Some(first) = &routing.first else {
        let same = match routing.choices {
            1 => "the only choice of experts is the same".to_owned(),
            n => format!("all {n} choices of experts are the same"),
        };
        return vec![format!("routing: {same}{unrecorded}")];
    };
    let token = token(first.position).map_or(String::new(), |token| format!(" ({token})"));
    vec![
        format!(
            "routing: {} of {} choices of experts differ{}{unrecorded}: {}; {}",
            routing.differing,
            routing.choices,
            reordered(routing),
            by_layer(routing),
            causes(routing)
        ),
        format!(
            "first other choice: {}, position {}{token}: {} {:?}, {} {:?}; {}",
            first.name,
            first.position,
            sides.a,
            first.a,
            sides.b,
            first.b,
            cause(first)
        ),
        next(routing, first, sides, tensors),
    ]
}

/// Returns the consequence of the first choice that differs.
fn next(routing: &Routing, first: &Choice, sides: &Sides, tensors: &[&str]) -> String {
    if routing.same_routing {
        let behind = tensors.iter().rev().take_while(|name| **name != first.name);
        let n = behind.count();
        let s = if n == 1 { "" } else { "s" };
        return format!(
            "{}: {n} tensor{s} behind that choice compared under the same routing",
            sides.went_on
        );
    }
    match first.cause {
        Cause::Following => format!(
            "other experts follow from what differs before; {}",
            sides.hint
        ),
        Cause::NearTie | Cause::Unexplained => format!(
            "look there first: whatever follows from other experts differs too; {}",
            sides.hint
        ),
    }
}

/// Maximum number of layers to list; the rest of a deep model adds nothing.
const MAX_LAYERS: usize = 6;

/// Lists the number of tokens with another choice, layer by layer.
fn by_layer(routing: &Routing) -> String {
    let one = |layer: &LayerRouting| {
        let s = if layer.tokens == 1 { "" } else { "s" };
        format!("{} token{s} in {}", layer.tokens, layer.name)
    };
    let shown = routing.layers.iter().take(MAX_LAYERS).map(one);
    let rest = routing.layers.len().saturating_sub(MAX_LAYERS);
    let rest = (rest > 0).then(|| format!("others in {rest} more layers"));
    shown.chain(rest).collect::<Vec<_>>().join(", ")
}

fn reordered(routing: &Routing) -> String {
    match routing.reordered {
        0 => String::new(),
        n => format!(" ({n} only in order)"),
    }
}

/// Counts the choices that differ by cause: near ties of scores, earlier differences, or none
/// known.
fn causes(routing: &Routing) -> String {
    let (following, unexplained) = (routing.following, routing.unexplained);
    let near = routing.differing - following - unexplained;
    let parts = [
        (near, if near == 1 { "near tie" } else { "near ties" }),
        (following, FOLLOWING),
        (unexplained, UNEXPLAINED),
    ];
    let there = parts.iter().filter(|(n, _)| *n > 0);
    let there = there.map(|(n, what)| format!("{n} {what}"));
    there.collect::<Vec<_>>().join(", ")
}

const FOLLOWING: &str = "following from what differs before";

const UNEXPLAINED: &str = "unexplained";

/// Returns the cause of a choice that differs, with its margin.
fn cause(choice: &Choice) -> String {
    let Some(tie) = &choice.tie else {
        return format!("{UNEXPLAINED}: no scores give such a choice");
    };
    let what = match choice.cause {
        Cause::NearTie => "a near tie",
        Cause::Following => FOLLOWING,
        Cause::Unexplained => UNEXPLAINED,
    };
    format!("{what}: {}", margin(tie))
}

fn margin(tie: &Tie) -> String {
    if tie.apart.is_nan() {
        return "scores were not shown".to_owned();
    }
    let groups = if tie.of_groups { " of groups" } else { "" };
    format!(
        "scores{groups} {:.2e} apart, their errors allow {:.2e}",
        tie.apart, tie.allowed
    )
}

/// Adds a table of the layers in which tokens chose other experts.
pub(super) fn table(page: &mut Page, routing: &Routing, sides: &Sides) {
    if routing.layers.is_empty() {
        return;
    }
    page.heading("Routing");
    let head = [
        "tensor",
        "tokens with another choice",
        UNEXPLAINED,
        "first at position",
        sides.a,
        sides.b,
        "why",
    ];
    page.table(
        &head,
        routing.layers.iter().map(|layer| {
            let first = &layer.first;
            let row = vec![
                layer.name.clone(),
                layer.tokens.to_string(),
                layer.unexplained.to_string(),
                first.position.to_string(),
                format!("{:?}", first.a),
                format!("{:?}", first.b),
                cause(first),
            ];
            (layer.unexplained > 0, row)
        }),
    );
}
