//! Syntax of every tool call format, for the parser.

use super::CallFormat;

/// Text after the marker that opens a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// Objects with name and arguments, one or a list.
    Objects,
    /// An object whose only key is the name.
    Keyed,
    /// Python-style calls, `f(x=1)`, one or a list.
    Python,
    /// Python-style calls, or objects.
    PythonOrObjects,
    /// The name, one of the separators, the arguments as JSON.
    Named(&'static [&'static str]),
    /// The name, then Gemma's own notation.
    Gemma,
    /// The name, a separator, then parameters in tags.
    Tags(&'static Tags),
    /// The name, then an element for each parameter, with nested elements: MiniMax M3.
    Elements,
}

/// Tags around parameters.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tags {
    /// Ends the function's name.
    pub(super) name_end: &'static str,
    /// Opens a parameter, before its name.
    pub(super) open: &'static str,
    /// Ends the parameter's name.
    pub(super) key_end: &'static str,
    /// Opens the value, if there is a separate tag for it.
    pub(super) value_open: &'static str,
    /// Ends the value.
    pub(super) value_end: &'static str,
    /// Ends the call.
    pub(super) end: &'static str,
    /// Whether the format itself puts a line break before and after a value.
    pub(super) is_padded: bool,
    /// Whether a text may be wrapped in `<![CDATA[…]]>`.
    pub(super) has_cdata: bool,
    /// Tags around arguments given as JSON instead.
    pub(super) json: Option<(&'static str, &'static str)>,
}

/// Formats whose answers consist of messages with recipients in their headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Headers {
    /// `<|start|>assistant<|channel|>analysis to=functions.f<|message|>`: gpt-oss.
    Harmony,
    /// `<|start|>assistant to=self<|message|>`: Muse Glimmer.
    Muse,
    /// `>>>all` and a line break: Functionary 3.2.
    Functionary,
}

/// Syntax of one format.
#[derive(Debug, Clone, Copy)]
pub(super) struct Syntax {
    /// Markers that open a call.
    pub(super) openers: &'static [&'static str],
    /// Markers that open and close a section of calls. If no call follows them, they remain
    /// content.
    pub(super) section: (&'static [&'static str], &'static [&'static str]),
    /// Control tokens around content without a meaning of their own.
    pub(super) skipped: &'static [&'static str],
    pub(super) body: Body,
    /// Markers that close a call.
    pub(super) closers: &'static [&'static str],
    /// Whether a `{` or `[` that begins the answer opens calls.
    pub(super) is_bare: bool,
    /// Whether call ids come after the arguments.
    pub(super) has_late_ids: bool,
    pub(super) headers: Option<Headers>,
}

const FUNCTION_TAGS: Tags = Tags {
    name_end: ">",
    open: "<parameter=",
    key_end: ">",
    value_open: "",
    value_end: "</parameter>",
    end: "</function>",
    is_padded: true,
    has_cdata: false,
    json: None,
};

const SEED_TAGS: Tags = Tags {
    is_padded: false,
    ..FUNCTION_TAGS
};

const ARG_KEYS: Tags = Tags {
    name_end: "<arg_key>",
    open: "<arg_key>",
    key_end: "</arg_key>",
    value_open: "<arg_value>",
    value_end: "</arg_value>",
    end: "</tool_call>",
    is_padded: false,
    has_cdata: false,
    json: None,
};

const HUNYUAN_TAGS: Tags = Tags {
    name_end: "<tool_sep:opensource>",
    open: "<arg_key:opensource>",
    key_end: "</arg_key:opensource>",
    value_open: "<arg_value:opensource>",
    value_end: "</arg_value:opensource>",
    end: "</tool_call:opensource>",
    is_padded: false,
    has_cdata: false,
    json: None,
};

const INVOKES: Tags = Tags {
    name_end: "\">",
    open: "<parameter name=\"",
    key_end: ">",
    value_open: "",
    value_end: "</parameter>",
    end: "</invoke>",
    is_padded: false,
    has_cdata: false,
    json: None,
};

const MUSE_TAGS: Tags = Tags {
    open: "<atem:parameter name=\"",
    value_end: "</atem:parameter>",
    end: "</atem:invoke>",
    ..INVOKES
};

const PARAMS: Tags = Tags {
    open: "<param name=\"",
    value_end: "</param>",
    end: "</function>",
    has_cdata: true,
    ..INVOKES
};

const DSML: Tags = Tags {
    open: "<｜DSML｜parameter name=\"",
    value_end: "</｜DSML｜parameter>",
    end: "</｜DSML｜invoke>",
    ..INVOKES
};

const KIMI_K3_TAGS: Tags = Tags {
    name_end: "<|sep|>",
    open: "<|open|>argument key=\"",
    key_end: "<|sep|>",
    value_open: "",
    value_end: "<|close|>argument<|sep|>",
    end: "<|close|>call<|sep|>",
    is_padded: false,
    has_cdata: false,
    json: Some((
        "<|open|>json type=\"object\"<|sep|>",
        "<|close|>json<|sep|>",
    )),
};

impl CallFormat {
    /// Returns whether models of this format call tools without closing their thought. Other models
    /// mention calls in their thoughts without meaning them.
    pub(super) fn calls_in_thoughts(self) -> bool {
        matches!(
            self,
            CallFormat::FunctionTag
                | CallFormat::SeedTag
                | CallFormat::ArgKey
                | CallFormat::Hunyuan
                | CallFormat::Dsml
                | CallFormat::DsmlV4
                | CallFormat::Kimi
                | CallFormat::Cohere
        )
    }

    pub(super) fn syntax(self) -> Syntax {
        match self {
            CallFormat::Json => Syntax {
                is_bare: true,
                ..enclosed(&[], &[])
            },
            CallFormat::Llama3 | CallFormat::Pythonic => Syntax {
                body: Body::PythonOrObjects,
                is_bare: true,
                ..enclosed(
                    &["<|python_tag|>", "<|python_start|>"],
                    &[
                        "<|python_end|>",
                        "<|eom_id|>",
                        "<|eot_id|>",
                        "<|eom|>",
                        "<|eot|>",
                    ],
                )
            },
            CallFormat::Lfm2 => Syntax {
                body: Body::Python,
                ..enclosed(&["<|tool_call_start|>"], &["<|tool_call_end|>"])
            },
            CallFormat::Mistral => Syntax {
                body: Body::Named(&["[ARGS]", "{"]),
                has_late_ids: true,
                ..enclosed(&["[TOOL_CALLS]"], &[])
            },
            CallFormat::MistralArgs => Syntax {
                body: Body::Named(&["[ARGS]", "{"]),
                ..enclosed(&["[TOOL_CALLS]"], &[])
            },
            CallFormat::Gemma => Syntax {
                body: Body::Gemma,
                ..enclosed(&["<|tool_call>call:"], &["<tool_call|>"])
            },
            CallFormat::Harmony => Syntax {
                body: Body::Named(&["<|message|>"]),
                skipped: &["<|end|>", "<|return|>", "<|call|>"],
                headers: Some(Headers::Harmony),
                ..enclosed(&[], &["<|call|>", "<|end|>", "<|return|>"])
            },
            CallFormat::Functionary => Syntax {
                body: Body::Named(&["\n"]),
                headers: Some(Headers::Functionary),
                ..enclosed(&[], &[])
            },
            CallFormat::Kimi => Syntax {
                body: Body::Named(&["<|tool_call_argument_begin|>"]),
                section: (
                    &["<|tool_calls_section_begin|>"],
                    &["<|tool_calls_section_end|>"],
                ),
                ..enclosed(&["<|tool_call_begin|>"], &["<|tool_call_end|>"])
            },
            CallFormat::Solar => Syntax {
                body: Body::Named(&["<|tool_call:args|>"]),
                section: (&["<|tool_calls|>"], &["<|calls|>"]),
                skipped: &["<|begin|>assistant", "<|content|>", "<|end|>", "<|flush|>"],
                ..enclosed(&["<|tool_call:begin|>"], &["<|tool_call:end|>"])
            },
            // The two differ in the text before and after the name.
            CallFormat::DeepSeek | CallFormat::DeepSeekR1 => Syntax {
                body: Body::Named(&["\n```json\n", "<｜tool▁sep｜>{"]),
                section: (&["<｜tool▁calls▁begin｜>"], &["<｜tool▁calls▁end｜>"]),
                ..enclosed(
                    &["<｜tool▁call▁begin｜>"],
                    &["```<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>"],
                )
            },
            _ => self.tags(),
        }
    }

    fn tags(self) -> Syntax {
        match self {
            CallFormat::FunctionTag | CallFormat::FunctionJson => Syntax {
                section: (&["<tool_call>"], &["</tool_call>"]),
                ..tagged(&["<function="], &FUNCTION_TAGS)
            },
            CallFormat::SeedTag => Syntax {
                section: (&["<seed:tool_call>"], &["</seed:tool_call>"]),
                ..tagged(&["<function="], &SEED_TAGS)
            },
            CallFormat::ArgKey => tagged(&["<tool_call>"], &ARG_KEYS),
            CallFormat::Hunyuan => Syntax {
                section: (&["<tool_calls:opensource>"], &["</tool_calls:opensource>"]),
                ..tagged(&["<tool_call:opensource>"], &HUNYUAN_TAGS)
            },
            CallFormat::Invoke => Syntax {
                section: (&["<minimax:tool_call>"], &["</minimax:tool_call>"]),
                ..tagged(&["<invoke name=\""], &INVOKES)
            },
            CallFormat::Muse => Syntax {
                section: (&["<atem:function_calls>"], &["</atem:function_calls>"]),
                skipped: &["<|eom|>", "<|eot|>"],
                headers: Some(Headers::Muse),
                ..tagged(&["<atem:invoke name=\""], &MUSE_TAGS)
            },
            CallFormat::Dsml | CallFormat::DsmlV4 => Syntax {
                section: (
                    &["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"],
                    &["</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
                ),
                ..tagged(&["<｜DSML｜invoke name=\""], &DSML)
            },
            CallFormat::ParamTag => tagged(&["<function name=\""], &PARAMS),
            CallFormat::KimiK3 => Syntax {
                section: (&["<|open|>tools<|sep|>"], &["<|close|>tools<|sep|>"]),
                skipped: &[
                    "<|open|>message role=\"assistant\"<|sep|>",
                    "<|open|>response<|sep|>",
                    "<|close|>response<|sep|>",
                    "<|close|>message<|sep|>",
                    "<|end_of_msg|>",
                ],
                ..tagged(&["<|open|>call tool=\""], &KIMI_K3_TAGS)
            },
            CallFormat::MiniMaxM3 => Syntax {
                body: Body::Elements,
                section: (
                    &["]<]minimax[>[<tool_call>"],
                    &["]<]minimax[>[</tool_call>"],
                ),
                ..enclosed(&["]<]minimax[>[<invoke name=\""], &[])
            },
            _ => self.objects(),
        }
    }

    fn objects(self) -> Syntax {
        match self {
            CallFormat::Apertus => Syntax {
                body: Body::Keyed,
                ..enclosed(&["<|tools_prefix|>"], &["<|tools_suffix|>"])
            },
            CallFormat::Cohere => Syntax {
                skipped: &[
                    "<|START_RESPONSE|>",
                    "<|END_RESPONSE|>",
                    "<|START_TEXT|>",
                    "<|END_TEXT|>",
                ],
                ..enclosed(&["<|START_ACTION|>"], &["<|END_ACTION|>"])
            },
            CallFormat::CommandR => enclosed(&["Action:\n```json", "Action: ```json"], &["```"]),
            CallFormat::Functools => enclosed(&["functools"], &[]),
            CallFormat::ToolCalls => enclosed(&["<tool_calls>"], &["</tool_calls>"]),
            CallFormat::Nemotron => enclosed(&["<TOOLCALL>"], &["</TOOLCALL>"]),
            CallFormat::Granite => enclosed(
                &["<|tool_call|>", "<tool_call>"],
                &["<|/tool_call|>", "</tool_call>"],
            ),
            CallFormat::FunctionCall => enclosed(&["<|function_call|>"], &["<|message_sep|>"]),
            CallFormat::GigaChat3 => enclosed(
                &[
                    "<|message_sep|>\n\nfunction call<|role_sep|>\n",
                    "function call<|role_sep|>\n",
                ],
                &["<|message_sep|>"],
            ),
            _ => enclosed(&["<tool_call>"], &["</tool_call>"]),
        }
    }
}

fn enclosed(openers: &'static [&'static str], closers: &'static [&'static str]) -> Syntax {
    Syntax {
        openers,
        section: (&[], &[]),
        skipped: &[],
        body: Body::Objects,
        closers,
        is_bare: false,
        has_late_ids: false,
        headers: None,
    }
}

fn tagged(openers: &'static [&'static str], tags: &'static Tags) -> Syntax {
    Syntax {
        body: Body::Tags(tags),
        ..enclosed(openers, &[])
    }
}
