//! Reasoning before a constrained answer.

use octavo_text::chat::answer::{CallFormat, Thoughts};

use crate::budget::ReasoningBudget;

/// The form of reasoning allowed before a constrained answer. By default there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reasoning {
    /// Text that opens what is reasoning alone, not a remark before a call.
    pub(crate) open: String,
    /// Texts that open reasoning at the beginning of an answer.
    pub(crate) opens: Vec<String>,
    /// Text that closes it.
    pub(crate) close: String,
    /// Whether the prompt has already opened it.
    pub(crate) is_open: bool,
    /// Whether further reasoning blocks may follow.
    pub(crate) repeats: bool,
    /// Texts, one of which precedes the text of an answer; an empty one makes them optional.
    pub(crate) leads: Vec<String>,
    /// The same for calls.
    pub(crate) call_leads: Vec<String>,
    /// Limit of its length.
    pub(crate) budget: ReasoningBudget,
}

impl Reasoning {
    /// Derives the form from a model's chat template and the rendered prompt, which may have opened
    /// or closed the reasoning already.
    pub fn of(template: &str, prompt: &str) -> Reasoning {
        let thoughts = Thoughts::of(template);
        let mut reasoning = Reasoning::default();
        if CallFormat::of(template) == CallFormat::Harmony {
            return Reasoning::of_channels();
        }
        let content = thoughts.content.iter().map(|text| (*text).to_owned());
        reasoning.leads = [String::new()].into_iter().chain(content).collect();
        if !thoughts.is_shown() {
            return reasoning;
        }
        let prompt = prompt.trim_end();
        let is_begun = thoughts.content.iter().any(|text| prompt.ends_with(text));
        if prompt.ends_with(thoughts.close) || is_begun {
            return reasoning;
        }
        reasoning.open = thoughts.open.to_owned();
        reasoning.close = thoughts.close.to_owned();
        reasoning.opens = vec![thoughts.open.to_owned()];
        reasoning.is_open = prompt.ends_with(thoughts.open.trim_end());
        reasoning.repeats = thoughts.repeats;
        reasoning
    }

    /// Marks the prompt as ending inside reasoning that the answer continues.
    #[must_use]
    pub fn in_thought(mut self) -> Reasoning {
        self.is_open = !self.close.is_empty();
        self
    }

    /// Limits its length.
    #[must_use]
    pub fn within(mut self, budget: ReasoningBudget) -> Reasoning {
        self.budget = budget;
        self
    }

    /// Returns whether there is reasoning whose length is limited.
    pub fn is_limited(&self) -> bool {
        self.budget.tokens.is_some() && self.is_possible()
    }

    /// Returns gpt-oss's form, messages on channels: reasoning on one, remarks before calls on
    /// another, and the answer on a third.
    fn of_channels() -> Reasoning {
        const NEXT: &str = "<|start|>assistant";
        let both = |text: &str| [text.to_owned(), format!("{NEXT}{text}")];
        let opens = [
            "<|channel|>analysis<|message|>",
            "<|channel|>commentary<|message|>",
        ];
        let leads = [
            "<|channel|>final<|message|>",
            "<|channel|>final <|constrain|>json<|message|>",
        ];
        Reasoning {
            open: opens[0].to_owned(),
            opens: opens.into_iter().flat_map(both).collect(),
            close: "<|end|>".to_owned(),
            is_open: false,
            repeats: true,
            leads: leads.into_iter().flat_map(both).collect(),
            call_leads: vec![String::new(), NEXT.to_owned()],
            budget: ReasoningBudget::default(),
        }
    }

    /// Returns whether reasoning may come first.
    pub(crate) fn is_possible(&self) -> bool {
        self.is_open || !self.opens.is_empty()
    }
}
