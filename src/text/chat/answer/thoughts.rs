//! Reasoning markers of models, detected from their chat templates.

/// Markers around thoughts (reasoning).
#[derive(Debug, PartialEq, Eq)]
pub struct Thoughts {
    /// Marker that opens a thought.
    pub open: &'static str,
    /// Marker that closes a thought.
    pub close: &'static str,
    /// Markers that begin the content, and so also end a thought that was not closed.
    pub content: &'static [&'static str],
    /// Marker that ends the content, if a marker began it.
    pub content_end: Option<&'static str>,
    /// Control tokens next to thoughts without a meaning of their own.
    pub(super) strays: &'static [&'static str],
    /// Substrings by which a template is recognised.
    signs: &'static [&'static str],
    /// Whether thoughts may occur anywhere and repeatedly, because their markers are control tokens
    /// that cannot occur in text. Other markers count at the beginning of an answer only.
    pub repeats: bool,
}

const fn tags(open: &'static str, close: &'static str, signs: &'static [&'static str]) -> Thoughts {
    Thoughts {
        open,
        close,
        content: &[],
        content_end: None,
        strays: &[],
        signs,
        repeats: false,
    }
}

const COHERE: Thoughts = Thoughts {
    content: &["<|START_RESPONSE|>", "<|START_TEXT|>"],
    ..tags(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        &["<|START_THINKING|>", "<|END_THINKING|>"],
    )
};

const KIMI_K3: Thoughts = Thoughts {
    content: &["<|open|>response<|sep|>"],
    ..tags(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        &["<|open|>", "<|close|>", "open_tag('think')"],
    )
};

const GEMMA: Thoughts = Thoughts {
    strays: &["<|channel>", "<channel|>"],
    repeats: true,
    ..tags(
        "<|channel>thought",
        "<channel|>",
        &["<|channel>thought", "<channel|>"],
    )
};

const SOLAR: Thoughts = Thoughts {
    repeats: true,
    content: &["<|content|>"],
    ..tags(
        "<|think|>",
        "<|end|>",
        &["<|think|>", "<|content|>", "<|end|>"],
    )
};

const HARMONY: Thoughts = Thoughts {
    repeats: true,
    ..tags(
        "<|channel|>analysis<|message|>",
        "<|end|>",
        &["<|channel|>", "<|message|>", "<|end|>"],
    )
};

const MUSE: Thoughts = Thoughts {
    repeats: true,
    ..tags(
        " to=self<|message|>",
        "<|eom|>",
        &["<atem:function_calls>", "<|message|>", "<|eom|>"],
    )
};

const GRANITE: Thoughts = Thoughts {
    content: &["<response>"],
    content_end: Some("</response>"),
    ..tags(
        "<think>",
        "</think>",
        &["<think></think>", "<response></response>"],
    )
};

/// Known markers; the first row whose signs are all in the template counts.
const ROWS: [Thoughts; 15] = [
    GRANITE,
    HARMONY,
    MUSE,
    tags("<think>", "</think>", &["<think>", "</think>"]),
    tags(
        "<seed:think>",
        "</seed:think>",
        &["<seed:think>", "</seed:think>"],
    ),
    tags("<mm:think>", "</mm:think>", &["<mm:think>", "</mm:think>"]),
    tags(
        "<think:opensource>",
        "</think:opensource>",
        &["'<think{}>'", "':opensource'"],
    ),
    tags(
        "<think:opensource>",
        "</think:opensource>",
        &["<think:opensource>", "</think:opensource>"],
    ),
    tags("[THINK]", "[/THINK]", &["[THINK]", "[/THINK]"]),
    COHERE,
    KIMI_K3,
    GEMMA,
    SOLAR,
    tags(
        "Here are my reasoning steps:\n",
        "[BEGIN FINAL RESPONSE]",
        &["Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"],
    ),
    tags("<thinking>", "</thinking>", &["<thinking>", "</thinking>"]),
];

/// Markers for templates that show none.
static UNKNOWN: Thoughts = tags("<think>", "</think>", &[]);

impl Thoughts {
    /// Returns the reasoning markers of this template's model.
    pub fn of(template: &str) -> &'static Thoughts {
        static ALL: [Thoughts; 15] = ROWS;
        let shows = |row: &&Thoughts| row.signs.iter().all(|sign| template.contains(sign));
        ALL.iter().find(shows).unwrap_or(&UNKNOWN)
    }

    /// Returns whether the template shows reasoning at all.
    pub fn is_shown(&self) -> bool {
        !self.signs.is_empty()
    }
}
