//! How a model writes calls of tools and thoughts, seen from its template.

/// How a model writes a call of a tool. Names and arguments are `f`, `x` and `1` here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallFormat {
    /// `<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>`: Hermes, Qwen, Granite, …
    Hermes,
    /// `{"name": "f", "parameters": {"x": 1}}` as the whole answer, or after `<|python_tag|>`:
    /// Llama 3.
    Llama3,
    /// `[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]`: Mistral.
    Mistral,
    /// `[TOOL_CALLS]f[ARGS]{"x": 1}`: Mistral's newer models.
    MistralArgs,
    /// `<tool_call><function=f><parameter=x>1</parameter></function></tool_call>`: Qwen3-Coder, …
    FunctionTag,
    /// `<function=f>{"x": 1}</function>`: Functionary, Llama 3's custom tools.
    FunctionJson,
    /// `<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>`: GLM.
    ArgKey,
    /// `<minimax:tool_call><invoke name="f"><parameter name="x">1</parameter></invoke>…`: MiniMax.
    Invoke,
    /// As [`CallFormat::Invoke`], every tag with `｜DSML｜`: DeepSeek from V3.2 on.
    Dsml,
    /// `<function name="f"><param name="x">1</param></function>`: MiniCPM.
    ParamTag,
    /// `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜>`: DeepSeek V3.1.
    DeepSeek,
    /// The same with `function<｜tool▁sep｜>f` and the arguments in a fence: DeepSeek R1 and V3.
    DeepSeekR1,
    /// `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|>`:
    /// Kimi K2.
    Kimi,
    /// `<tool_calls>[{"name": "f", "arguments": {"x": 1}}]</tool_calls>`: Apriel, MiniMax M1.
    ToolCalls,
    /// `<TOOLCALL>[{"name": "f", "arguments": {"x": 1}}]</TOOLCALL>`: Nemotron.
    Nemotron,
    /// `<|START_ACTION|>[{"tool_name": "f", "parameters": {"x": 1}}]<|END_ACTION|>`: Command R7B.
    Cohere,
    /// `<|tools_prefix|>[{"f": {"x": 1}}]<|tools_suffix|>`: Apertus.
    Apertus,
    /// `<|function_call|>{"name": "f", "arguments": {"x": 1}}`: GigaChat.
    FunctionCall,
    /// `<|tool_call>call:f{x:1}<tool_call|>`: Gemma 4.
    Gemma,
    /// `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>`:
    /// gpt-oss.
    Harmony,
    /// `{"name": "f", "arguments": {"x": 1}}` as the whole answer: for templates that show none.
    Json,
}

/// What follows the marker that opens a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// Objects with the name and the arguments, one or a list.
    Objects,
    /// An object whose one key is the name.
    Keyed,
    /// The name, one of the separators, the arguments as JSON.
    Named(&'static [&'static str]),
    /// The name, and Gemma's own notation.
    Gemma,
    /// The name, a separator, parameters in tags.
    Tags(&'static Tags),
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
    /// Opens the value, where another tag does.
    pub(super) value_open: &'static str,
    /// Ends the value.
    pub(super) value_end: &'static str,
    /// Ends the call.
    pub(super) end: &'static str,
}

/// Everything about a format.
#[derive(Debug, Clone, Copy)]
pub(super) struct Syntax {
    /// Any of these opens a call.
    pub(super) openers: &'static [&'static str],
    /// Markers around calls and content that mean nothing by themselves.
    pub(super) skipped: &'static [&'static str],
    pub(super) body: Body,
    /// Any of these ends what the opener opened.
    pub(super) closers: &'static [&'static str],
    /// Whether a `{` that begins the answer opens a call.
    pub(super) bare: bool,
}

const FUNCTION_TAGS: Tags = Tags {
    name_end: ">",
    open: "<parameter=",
    key_end: ">",
    value_open: "",
    value_end: "</parameter>",
    end: "</function>",
};

const ARG_KEYS: Tags = Tags {
    name_end: "<arg_key>",
    open: "<arg_key>",
    key_end: "</arg_key>",
    value_open: "<arg_value>",
    value_end: "</arg_value>",
    end: "</tool_call>",
};

const INVOKES: Tags = Tags {
    name_end: "\">",
    open: "<parameter name=\"",
    key_end: ">",
    value_open: "",
    value_end: "</parameter>",
    end: "</invoke>",
};

const PARAMS: Tags = Tags {
    name_end: "\">",
    open: "<param name=\"",
    key_end: ">",
    value_open: "",
    value_end: "</param>",
    end: "</function>",
};

const DSML: Tags = Tags {
    name_end: "\">",
    open: "<｜DSML｜parameter name=\"",
    key_end: ">",
    value_open: "",
    value_end: "</｜DSML｜parameter>",
    end: "</｜DSML｜invoke>",
};

/// What a template contains where its model writes calls in a format; the first that fits counts.
const SIGNS: [(&str, CallFormat); 19] = [
    ("｜DSML｜", CallFormat::Dsml),
    ("<minimax:tool_call>", CallFormat::Invoke),
    ("<arg_key>", CallFormat::ArgKey),
    ("<parameter=", CallFormat::FunctionTag),
    ("<param name=", CallFormat::ParamTag),
    ("<function=", CallFormat::FunctionJson),
    ("[ARGS]", CallFormat::MistralArgs),
    ("[TOOL_CALLS]", CallFormat::Mistral),
    ("<|tool_call_argument_begin|>", CallFormat::Kimi),
    ("<｜tool▁sep｜>", CallFormat::DeepSeek),
    ("<TOOLCALL>", CallFormat::Nemotron),
    ("<|START_ACTION|>", CallFormat::Cohere),
    ("<|tools_prefix|>", CallFormat::Apertus),
    ("<|channel|>commentary", CallFormat::Harmony),
    ("<|tool_call>call:", CallFormat::Gemma),
    ("<|function_call|>", CallFormat::FunctionCall),
    ("<tool_calls>", CallFormat::ToolCalls),
    ("<tool_call>", CallFormat::Hermes),
    ("\"parameters\": ", CallFormat::Llama3),
];

impl CallFormat {
    /// The format that a template shows.
    pub fn of(template: &str) -> CallFormat {
        let found = SIGNS.iter().find(|(sign, _)| template.contains(sign));
        match found {
            Some((_, CallFormat::DeepSeek)) if template.contains("```json") => {
                CallFormat::DeepSeekR1
            }
            Some((_, format)) => *format,
            None if template.contains("<|python_tag|>") => CallFormat::Llama3,
            None => CallFormat::Json,
        }
    }

    /// The text that opens a call: where an answer shows it, a call follows and nothing else. A
    /// grammar that forces a call begins with it.
    pub fn opening(self) -> &'static str {
        match self {
            CallFormat::Llama3 | CallFormat::Json => "{\"name\": \"",
            CallFormat::FunctionTag => "<tool_call>\n<function=",
            CallFormat::Invoke => "<minimax:tool_call>\n<invoke name=\"",
            // V3.2 and V4 differ in what follows.
            CallFormat::Dsml => "<｜DSML｜",
            CallFormat::DeepSeek => "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
            CallFormat::DeepSeekR1 => {
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
            }
            CallFormat::Kimi => "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
            format => format.syntax().openers.first().copied().unwrap_or_default(),
        }
    }

    /// The text before and after the arguments of a single call of `name`, where the arguments are
    /// written as JSON; `None` where parameters stand in tags. What is before begins with
    /// [`CallFormat::opening`].
    pub fn around(self, name: &str) -> Option<(String, String)> {
        let quoted = serde_json::Value::from(name);
        let opening = self.opening();
        let (before, after) = match self {
            CallFormat::Hermes => (
                format!("{opening}\n{{\"name\": {quoted}, \"arguments\": "),
                "}\n</tool_call>",
            ),
            CallFormat::Llama3 => (format!("{{\"name\": {quoted}, \"parameters\": "), "}"),
            CallFormat::Json => (format!("{{\"name\": {quoted}, \"arguments\": "), "}"),
            CallFormat::Mistral => (
                format!("{opening}[{{\"name\": {quoted}, \"arguments\": "),
                "}]",
            ),
            CallFormat::ToolCalls => (
                format!("{opening}[{{\"name\": {quoted}, \"arguments\": "),
                "}]</tool_calls>",
            ),
            CallFormat::Nemotron => (
                format!("{opening}[{{\"name\": {quoted}, \"arguments\": "),
                "}]</TOOLCALL>",
            ),
            CallFormat::Cohere => (
                format!(
                    "{opening}[\n    {{\"tool_call_id\": \"0\", \"tool_name\": {quoted}, \
                     \"parameters\": "
                ),
                "}\n]<|END_ACTION|>",
            ),
            CallFormat::Apertus => (format!("{opening}[{{{quoted}: "), "}]<|tools_suffix|>"),
            CallFormat::MistralArgs => (format!("{opening}{name}[ARGS]"), ""),
            CallFormat::FunctionJson => (format!("{opening}{name}>"), "</function>"),
            CallFormat::DeepSeek => (
                format!("{opening}{name}<｜tool▁sep｜>"),
                "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ),
            CallFormat::DeepSeekR1 => (
                format!("{opening}{name}\n```json\n"),
                "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ),
            CallFormat::Kimi => (
                format!("{opening}{name}:0<|tool_call_argument_begin|>"),
                "<|tool_call_end|><|tool_calls_section_end|>",
            ),
            CallFormat::Harmony => (
                format!("{opening}{name} <|constrain|>json<|message|>"),
                "<|call|>",
            ),
            CallFormat::FunctionCall => (
                format!("{opening}{{\"name\": {quoted}, \"arguments\": "),
                "}",
            ),
            CallFormat::Gemma
            | CallFormat::ParamTag
            | CallFormat::FunctionTag
            | CallFormat::ArgKey
            | CallFormat::Invoke
            | CallFormat::Dsml => return None,
        };
        Some((before, after.to_owned()))
    }

    /// The format in which a grammar forces a call of a model that writes this one: the same,
    /// except where values have a notation of their own.
    pub fn forced(self) -> CallFormat {
        match self {
            CallFormat::Gemma => CallFormat::Hermes,
            own => own,
        }
    }

    /// The text before and after the parameters of a single call of `name`, where each stands in
    /// tags; `None` where they do not. What is before begins with [`CallFormat::opening`].
    pub fn around_tags(self, name: &str) -> Option<(String, &'static str)> {
        let opening = self.opening();
        match self {
            CallFormat::FunctionTag => {
                Some((format!("{opening}{name}>\n"), "</function>\n</tool_call>"))
            }
            CallFormat::ParamTag => Some((format!("{opening}{name}\">\n"), "</function>")),
            CallFormat::ArgKey => Some((format!("{opening}{name}\n"), "</tool_call>")),
            CallFormat::Invoke => Some((
                format!("{opening}{name}\">\n"),
                "</invoke>\n</minimax:tool_call>",
            )),
            CallFormat::Dsml => Some((
                format!("{opening}function_calls>\n<｜DSML｜invoke name=\"{name}\">\n"),
                "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            )),
            _ => None,
        }
    }

    /// The text before and after the value of such a parameter, which is a text or JSON.
    pub fn around_value(self, key: &str, is_text: bool) -> (String, &'static str) {
        match self {
            CallFormat::ParamTag => (format!("<param name=\"{key}\">"), "</param>\n"),
            CallFormat::ArgKey => (
                format!("<arg_key>{key}</arg_key>\n<arg_value>"),
                "</arg_value>\n",
            ),
            CallFormat::Invoke => (format!("<parameter name=\"{key}\">"), "</parameter>\n"),
            CallFormat::Dsml => (
                format!("<｜DSML｜parameter name=\"{key}\" string=\"{is_text}\">"),
                "</｜DSML｜parameter>\n",
            ),
            _ => (format!("<parameter={key}>\n"), "\n</parameter>\n"),
        }
    }

    pub(super) fn syntax(self) -> Syntax {
        let plain = Syntax {
            openers: &[],
            skipped: &[],
            body: Body::Objects,
            closers: &[],
            bare: false,
        };
        match self {
            CallFormat::Json => Syntax {
                bare: true,
                ..plain
            },
            CallFormat::Llama3 => Syntax {
                openers: &["<|python_tag|>"],
                closers: &["<|eom_id|>", "<|eot_id|>"],
                bare: true,
                ..plain
            },
            CallFormat::Hermes => enclosed(&["<tool_call>"], &["</tool_call>"]),
            CallFormat::ToolCalls => enclosed(&["<tool_calls>"], &["</tool_calls>"]),
            CallFormat::Nemotron => enclosed(&["<TOOLCALL>"], &["</TOOLCALL>"]),
            CallFormat::Cohere => Syntax {
                skipped: &[
                    "<|START_RESPONSE|>",
                    "<|END_RESPONSE|>",
                    "<|START_TEXT|>",
                    "<|END_TEXT|>",
                ],
                ..enclosed(&["<|START_ACTION|>"], &["<|END_ACTION|>"])
            },
            CallFormat::FunctionCall => enclosed(&["<|function_call|>"], &["<|message_sep|>"]),
            CallFormat::Gemma => Syntax {
                body: Body::Gemma,
                ..enclosed(&["<|tool_call>call:"], &["<tool_call|>"])
            },
            CallFormat::ParamTag => Syntax {
                body: Body::Tags(&PARAMS),
                ..enclosed(&["<function name=\""], &[])
            },
            CallFormat::Apertus => Syntax {
                body: Body::Keyed,
                ..enclosed(&["<|tools_prefix|>"], &["<|tools_suffix|>"])
            },
            CallFormat::Mistral | CallFormat::MistralArgs => Syntax {
                body: Body::Named(&["[ARGS]", "{"]),
                ..enclosed(&["[TOOL_CALLS]"], &[])
            },
            CallFormat::FunctionTag | CallFormat::FunctionJson => Syntax {
                body: Body::Tags(&FUNCTION_TAGS),
                skipped: &[
                    "<tool_call>",
                    "</tool_call>",
                    "<seed:tool_call>",
                    "</seed:tool_call>",
                ],
                ..enclosed(&["<function="], &[])
            },
            CallFormat::ArgKey => Syntax {
                body: Body::Tags(&ARG_KEYS),
                ..enclosed(&["<tool_call>"], &[])
            },
            CallFormat::Invoke => Syntax {
                body: Body::Tags(&INVOKES),
                skipped: &["<minimax:tool_call>", "</minimax:tool_call>"],
                ..enclosed(&["<invoke name=\""], &[])
            },
            CallFormat::Dsml => Syntax {
                body: Body::Tags(&DSML),
                skipped: &[
                    "<｜DSML｜function_calls>",
                    "</｜DSML｜function_calls>",
                    "<｜DSML｜tool_calls>",
                    "</｜DSML｜tool_calls>",
                ],
                ..enclosed(&["<｜DSML｜invoke name=\""], &[])
            },
            _ => self.named_syntax(),
        }
    }

    fn named_syntax(self) -> Syntax {
        match self {
            CallFormat::Kimi => Syntax {
                body: Body::Named(&["<|tool_call_argument_begin|>"]),
                skipped: &["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
                ..enclosed(&["<|tool_call_begin|>"], &["<|tool_call_end|>"])
            },
            CallFormat::Harmony => Syntax {
                body: Body::Named(&["<|message|>"]),
                skipped: &[
                    "<|start|>assistant",
                    "<|channel|>final<|message|>",
                    "<|channel|>commentary<|message|>",
                    "<|end|>",
                    "<|return|>",
                ],
                ..enclosed(
                    &["<|channel|>commentary to=functions.", " to=functions."],
                    &["<|call|>"],
                )
            },
            // Both of DeepSeek's: the parser tells them apart by what stands after the name.
            _ => Syntax {
                body: Body::Named(&["\n```json\n", "<｜tool▁sep｜>{"]),
                skipped: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
                ..enclosed(
                    &["<｜tool▁call▁begin｜>"],
                    &["```<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>"],
                )
            },
        }
    }
}

fn enclosed(openers: &'static [&'static str], closers: &'static [&'static str]) -> Syntax {
    Syntax {
        openers,
        skipped: &[],
        body: Body::Objects,
        closers,
        bare: false,
    }
}

/// Tags around thoughts. The first is for templates that show none.
const THOUGHTS: [(&str, &str); 10] = [
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<thinking>", "</thinking>"),
];

/// What opens and closes a thought in answers of this template's model.
pub(super) fn thoughts(template: &str) -> (&'static str, &'static str) {
    let shown =
        |&&(open, close): &&(&str, &str)| template.contains(open) && template.contains(close);
    *THOUGHTS.iter().find(shown).unwrap_or(&THOUGHTS[0])
}
