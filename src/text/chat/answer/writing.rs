//! Writes tool calls, for grammars that force them.

use serde_json::Value;

use super::CallFormat;
use super::syntax::Body;

/// Text around all calls of an answer and between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// Text before the first call.
    pub open: &'static str,
    /// Text between two calls.
    pub between: &'static str,
    /// Text after the last call.
    pub close: &'static str,
}

/// A call of one function: the text before and after its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Text before the arguments.
    pub before: String,
    /// Text after the arguments.
    pub after: &'static str,
    /// Notation of the arguments.
    pub arguments: Arguments,
}

/// Notation of a call's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arguments {
    /// As a JSON object.
    Json,
    /// One parameter after the other, each between the texts of [`CallFormat::around_value`], with
    /// this text between two of them.
    Parameters {
        /// Text between two parameters.
        between: &'static str,
    },
}

const fn section(open: &'static str, between: &'static str, close: &'static str) -> Section {
    Section {
        open,
        between,
        close,
    }
}

impl CallFormat {
    /// Returns the texts that open a call: after one of these, a call may follow. Empty if calls
    /// are the whole answer.
    pub fn openers(self) -> &'static [&'static str] {
        match self {
            CallFormat::Harmony => &[" to=functions."],
            CallFormat::Functionary => &[">>>"],
            format => format.syntax().openers,
        }
    }

    /// Returns the text around all calls of an answer.
    pub fn section(self) -> Section {
        match self {
            CallFormat::Llama3 => section("", "; ", ""),
            CallFormat::Pythonic => section("[", ", ", "]"),
            CallFormat::Lfm2 => section("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
            CallFormat::Mistral => section("[TOOL_CALLS][", ", ", "]"),
            CallFormat::ToolCalls => section("<tool_calls>[", ", ", "]</tool_calls>"),
            CallFormat::Nemotron => section("<TOOLCALL>[", ", ", "]</TOOLCALL>"),
            CallFormat::Granite => section("<|tool_call|>[", ", ", "]"),
            CallFormat::Functools => section(" functools[", ", ", "]"),
            CallFormat::CommandR => section("Action:\n```json\n[\n", ",\n", "\n]\n```"),
            CallFormat::Cohere => section("<|START_ACTION|>[\n", ",\n", "\n]<|END_ACTION|>"),
            CallFormat::Apertus => section("<|tools_prefix|>[", ", ", "]<|tools_suffix|>"),
            CallFormat::DeepSeek => section("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
            CallFormat::DeepSeekR1 => {
                section("<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>")
            }
            CallFormat::Kimi => section(
                "<|tool_calls_section_begin|>",
                "",
                "<|tool_calls_section_end|>",
            ),
            CallFormat::KimiK3 => section("<|open|>tools<|sep|>", "", "<|close|>tools<|sep|>"),
            CallFormat::Solar => section("<|tool_calls|>", "", "<|calls|>"),
            CallFormat::Hunyuan => {
                section("<tool_calls:opensource>\n", "", "</tool_calls:opensource>")
            }
            CallFormat::Invoke => section("<minimax:tool_call>\n", "", "</minimax:tool_call>"),
            CallFormat::MiniMaxM3 => section(
                "]<]minimax[>[<tool_call>\n",
                "",
                "]<]minimax[>[</tool_call>",
            ),
            CallFormat::Dsml => section(
                "<｜DSML｜function_calls>\n",
                "",
                "</｜DSML｜function_calls>",
            ),
            CallFormat::DsmlV4 => section("<｜DSML｜tool_calls>\n", "", "</｜DSML｜tool_calls>"),
            CallFormat::Muse => section("", "<|eom|><|start|>assistant", ""),
            CallFormat::Harmony => section("", "<|start|>assistant", ""),
            CallFormat::Functionary => section("", ">>>", ""),
            CallFormat::FunctionCall => section("", "<|message_sep|>", ""),
            CallFormat::MistralArgs
            | CallFormat::FunctionJson
            | CallFormat::GigaChat3
            | CallFormat::Gemma => section("", "", ""),
            _ => section("", "\n", ""),
        }
    }

    /// Returns the text around the arguments of a call of `name`, inside the section of calls.
    pub fn call(self, name: &str) -> Call {
        let (before, after) = match self.syntax().body {
            Body::Tags(_) | Body::Elements => self.around_parameters(name),
            _ => self.around_arguments(name),
        };
        let between = match self {
            CallFormat::Gemma => Some(","),
            CallFormat::Pythonic | CallFormat::Lfm2 => Some(", "),
            CallFormat::FunctionJson => None,
            format => match format.syntax().body {
                Body::Tags(_) | Body::Elements => Some(""),
                _ => None,
            },
        };
        Call {
            before,
            after,
            arguments: match between {
                Some(between) => Arguments::Parameters { between },
                None => Arguments::Json,
            },
        }
    }

    /// Returns the text around the parameters of a call that puts each in tags.
    fn around_parameters(self, name: &str) -> (String, &'static str) {
        match self {
            CallFormat::SeedTag => (
                format!("<seed:tool_call>\n<function={name}>\n"),
                "</function>\n</seed:tool_call>",
            ),
            CallFormat::FunctionJson => (format!("<function={name}>"), "</function>"),
            CallFormat::ParamTag => (format!("<function name=\"{name}\">"), "</function>"),
            CallFormat::ArgKey => (format!("<tool_call>{name}\n"), "</tool_call>"),
            CallFormat::Hunyuan => (
                format!("<tool_call:opensource>{name}<tool_sep:opensource>\n"),
                "</tool_call:opensource>\n",
            ),
            CallFormat::Invoke => (format!("<invoke name=\"{name}\">\n"), "</invoke>\n"),
            CallFormat::MiniMaxM3 => (
                format!("]<]minimax[>[<invoke name=\"{name}\">"),
                "]<]minimax[>[</invoke>\n",
            ),
            CallFormat::Dsml | CallFormat::DsmlV4 => (
                format!("<｜DSML｜invoke name=\"{name}\">\n"),
                "</｜DSML｜invoke>\n",
            ),
            CallFormat::Muse => (
                format!(
                    " to={name}<|message|><atem:function_calls>\n<atem:invoke name=\"{name}\">\n"
                ),
                "</atem:invoke>\n</atem:function_calls>",
            ),
            CallFormat::KimiK3 => (
                format!("<|open|>call tool=\"{name}\" index=\"1\"<|sep|>"),
                "<|close|>call<|sep|>",
            ),
            _ => (
                format!("<tool_call>\n<function={name}>\n"),
                "</function>\n</tool_call>",
            ),
        }
    }

    /// Returns the text around arguments that are one value.
    fn around_arguments(self, name: &str) -> (String, &'static str) {
        let quoted = Value::from(name);
        let object = format!("{{\"name\": {quoted}, \"arguments\": ");
        match self {
            CallFormat::Hermes => (format!("<tool_call>\n{object}"), "}\n</tool_call>"),
            CallFormat::Llama3 => (format!("{{\"name\": {quoted}, \"parameters\": "), "}"),
            CallFormat::Pythonic | CallFormat::Lfm2 => (format!("{name}("), ")"),
            CallFormat::CommandR => (format!("{{\"tool_name\": {quoted}, \"parameters\": "), "}"),
            CallFormat::Cohere => (
                format!("    {{\"tool_call_id\": \"0\", \"tool_name\": {quoted}, \"parameters\": "),
                "}",
            ),
            CallFormat::Apertus => (format!("{{{quoted}: "), "}"),
            CallFormat::MistralArgs => (format!("[TOOL_CALLS]{name}[ARGS]"), ""),
            CallFormat::DeepSeek => (
                format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>"),
                "<｜tool▁call▁end｜>",
            ),
            CallFormat::DeepSeekR1 => (
                format!("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n"),
                "\n```<｜tool▁call▁end｜>",
            ),
            CallFormat::Kimi => (
                format!("<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"),
                "<|tool_call_end|>",
            ),
            CallFormat::Solar => (
                format!("<|tool_call:begin|>0<|tool_call:name|>{name}<|tool_call:args|>"),
                "<|tool_call:end|>",
            ),
            CallFormat::Harmony => (
                format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"),
                "<|call|>",
            ),
            CallFormat::Functionary => (format!("{name}\n"), ""),
            CallFormat::FunctionCall => (format!("<|function_call|>{object}"), "}"),
            CallFormat::GigaChat3 => (
                format!("<|message_sep|>\n\nfunction call<|role_sep|>\n{object}"),
                "}",
            ),
            CallFormat::Gemma => (format!("<|tool_call>call:{name}{{"), "}<tool_call|>"),
            _ => (object, "}"),
        }
    }

    /// Returns the text before and after the value of a parameter, which is a verbatim text
    /// (`is_text`) or JSON, for calls with one parameter after the other.
    pub fn around_value(self, key: &str, is_text: bool) -> (String, String) {
        let (before, after) = match self {
            CallFormat::ParamTag => (format!("<param name=\"{key}\">"), "</param>"),
            CallFormat::SeedTag => (format!("<parameter={key}>"), "</parameter>\n"),
            CallFormat::ArgKey => (
                format!("<arg_key>{key}</arg_key>\n<arg_value>"),
                "</arg_value>\n",
            ),
            CallFormat::Hunyuan => (
                format!("<arg_key:opensource>{key}</arg_key:opensource>\n<arg_value:opensource>"),
                "</arg_value:opensource>\n",
            ),
            CallFormat::Invoke => (format!("<parameter name=\"{key}\">"), "</parameter>\n"),
            CallFormat::Muse => (
                format!("<atem:parameter name=\"{key}\">"),
                "</atem:parameter>\n",
            ),
            CallFormat::Dsml | CallFormat::DsmlV4 => (
                format!("<｜DSML｜parameter name=\"{key}\" string=\"{is_text}\">"),
                "</｜DSML｜parameter>\n",
            ),
            CallFormat::KimiK3 => {
                let kind = if is_text { "string" } else { "object" };
                (
                    format!("<|open|>argument key=\"{key}\" type=\"{kind}\"<|sep|>"),
                    "<|close|>argument<|sep|>",
                )
            }
            CallFormat::MiniMaxM3 => {
                let after = format!("]<]minimax[>[</{key}>");
                return (format!("]<]minimax[>[<{key}>"), after);
            }
            CallFormat::Gemma if is_text => (format!("{key}:<|\"|>"), "<|\"|>"),
            CallFormat::Gemma => (format!("{key}:"), ""),
            CallFormat::Pythonic | CallFormat::Lfm2 => (format!("{key}="), ""),
            _ => (format!("<parameter={key}>\n"), "\n</parameter>\n"),
        };
        (before, after.to_owned())
    }

    /// Returns the text that ends a verbatim text parameter; `None` if texts are JSON strings.
    pub fn text_end(self, key: &str) -> Option<String> {
        match (self, self.syntax().body) {
            (CallFormat::FunctionJson, _) => None,
            (_, Body::Tags(tags)) => Some(tags.value_end.to_owned()),
            (_, Body::Elements) => Some(format!("]<]minimax[>[</{key}>")),
            (_, Body::Gemma) => Some("<|\"|>".to_owned()),
            _ => None,
        }
    }

    /// Returns the text before and after the arguments of an answer's only call, if the arguments
    /// are JSON.
    pub fn around(self, name: &str) -> Option<(String, String)> {
        let call = self.call(name);
        (call.arguments == Arguments::Json).then(|| self.alone(&call))
    }

    /// Returns the text before and after the parameters of an answer's only call, if they are
    /// written one after the other.
    pub fn around_tags(self, name: &str) -> Option<(String, String)> {
        let call = self.call(name);
        (call.arguments != Arguments::Json).then(|| self.alone(&call))
    }

    fn alone(self, call: &Call) -> (String, String) {
        let Section { open, close, .. } = self.section();
        let (before, after) = (&call.before, call.after);
        (format!("{open}{before}"), format!("{after}{close}"))
    }
}
