//! Tool call formats of models, detected from their chat templates.

/// Format in which a model writes a tool call. Names and arguments are `f`, `x` and `1` here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallFormat {
    /// `<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>`: Hermes, Qwen, Granite 4, …
    Hermes,
    /// `{"name": "f", "parameters": {"x": 1}}` as the whole answer, or after `<|python_tag|>`:
    /// Llama 3.
    Llama3,
    /// `[f(x=1)]` as the whole answer: Llama 4 and others prompted to do so.
    Pythonic,
    /// `<|tool_call_start|>[f(x=1)]<|tool_call_end|>`: LFM2.
    Lfm2,
    /// `[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}, "id": "123456789"}]`: Mistral.
    Mistral,
    /// `[TOOL_CALLS]f[ARGS]{"x": 1}`: Mistral's newer models.
    MistralArgs,
    /// `<tool_call><function=f><parameter=x>1</parameter></function></tool_call>`: Qwen3-Coder, …
    FunctionTag,
    /// As [`CallFormat::FunctionTag`] in `<seed:tool_call>`, without line breaks around values:
    /// Seed-OSS.
    SeedTag,
    /// `<function=f>{"x": 1}</function>`: Functionary 3.1, Llama 3's custom tools.
    FunctionJson,
    /// `<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>`: GLM, Laguna, Ling.
    ArgKey,
    /// As [`CallFormat::ArgKey`], every tag with `:opensource`: Hunyuan 3.
    Hunyuan,
    /// `<minimax:tool_call><invoke name="f"><parameter name="x">1</parameter></invoke>…`:
    /// MiniMax M2.
    Invoke,
    /// `<tool_call><invoke name="f"><x>1</x></invoke></tool_call>`, every tag after
    /// `]<]minimax[>[`: MiniMax M3.
    MiniMaxM3,
    /// As [`CallFormat::Invoke`], every tag with `｜DSML｜`: DeepSeek V3.2.
    Dsml,
    /// As [`CallFormat::Dsml`] in `<｜DSML｜tool_calls>`: DeepSeek V4.
    DsmlV4,
    /// As [`CallFormat::Invoke`], every tag with `atem:`, in messages with headers: Muse Glimmer.
    Muse,
    /// `<function name="f"><param name="x">1</param></function>`: MiniCPM.
    ParamTag,
    /// `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜>`: DeepSeek V3.1.
    DeepSeek,
    /// As [`CallFormat::DeepSeek`] with `function<｜tool▁sep｜>f` and the arguments in a code fence:
    /// DeepSeek R1 and V3.
    DeepSeekR1,
    /// `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|>`:
    /// Kimi K2.
    Kimi,
    /// `<|open|>call tool="f"<|sep|><|open|>argument key="x"<|sep|>1<|close|>argument<|sep|>…`:
    /// Kimi K3.
    KimiK3,
    /// `<|tool_call:begin|>id<|tool_call:name|>f<|tool_call:args|>{"x": 1}<|tool_call:end|>`:
    /// Solar Open.
    Solar,
    /// `<tool_calls>[{"name": "f", "arguments": {"x": 1}}]</tool_calls>`: Apriel, MiniMax M1.
    ToolCalls,
    /// `<TOOLCALL>[{"name": "f", "arguments": {"x": 1}}]</TOOLCALL>`: Nemotron.
    Nemotron,
    /// `<|tool_call|>[{"name": "f", "arguments": {"x": 1}}]`: Granite 3, Phi-4 mini.
    Granite,
    /// ` functools[{"name": "f", "arguments": {"x": 1}}]`: FireFunction.
    Functools,
    /// `<|START_ACTION|>[{"tool_name": "f", "parameters": {"x": 1}}]<|END_ACTION|>`: Command R7B.
    Cohere,
    /// As [`CallFormat::Cohere`] after `Action:`, in a code fence: Command R.
    CommandR,
    /// `<|tools_prefix|>[{"f": {"x": 1}}]<|tools_suffix|>`: Apertus.
    Apertus,
    /// `<|function_call|>{"name": "f", "arguments": {"x": 1}}`: GigaChat 3.1.
    FunctionCall,
    /// As [`CallFormat::FunctionCall`] after `function call<|role_sep|>`, in a message of its own:
    /// GigaChat 3.
    GigaChat3,
    /// `<|tool_call>call:f{x:1}<tool_call|>`: Gemma 4.
    Gemma,
    /// `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>`:
    /// gpt-oss.
    Harmony,
    /// `>>>f`, a line break and `{"x": 1}`: Functionary 3.2.
    Functionary,
    /// `{"name": "f", "arguments": {"x": 1}}` as the whole answer: for templates without a format.
    Json,
}

/// Substrings by which a template is recognised as using a format; the first match counts.
const SIGNS: [(&[&str], CallFormat); 37] = [
    (&["｜DSML｜", "function_calls"], CallFormat::Dsml),
    (&["｜DSML｜"], CallFormat::DsmlV4),
    (&["]<]minimax[>[", "<invoke name="], CallFormat::MiniMaxM3),
    (&["<atem:function_calls>", "<|eom|>"], CallFormat::Muse),
    (&["<minimax:tool_call>"], CallFormat::Invoke),
    (&["<arg_key{}>", "':opensource'"], CallFormat::Hunyuan),
    (&["<arg_key:opensource>"], CallFormat::Hunyuan),
    (&["<arg_key>"], CallFormat::ArgKey),
    (&["<seed:tool_call>", "<parameter="], CallFormat::SeedTag),
    (&["<parameter="], CallFormat::FunctionTag),
    (&["<param name="], CallFormat::ParamTag),
    (&["<function="], CallFormat::FunctionJson),
    (&["[TOOL_CALLS]", "[ARGS]"], CallFormat::MistralArgs),
    (&["[TOOL_CALLS]"], CallFormat::Mistral),
    (&["<|tool_call_argument_begin|>"], CallFormat::Kimi),
    (
        &["<|open|>", "<|close|>", "<|end_of_msg|>"],
        CallFormat::KimiK3,
    ),
    (&["<|open|>call tool="], CallFormat::KimiK3),
    (
        &["<|tool_call:begin|>", "<|tool_call:args|>"],
        CallFormat::Solar,
    ),
    (&["<｜tool▁sep｜>", "```json"], CallFormat::DeepSeekR1),
    (&["<｜tool▁sep｜>"], CallFormat::DeepSeek),
    (&["<TOOLCALL>"], CallFormat::Nemotron),
    (&["<|START_ACTION|>"], CallFormat::Cohere),
    (
        &["Action:", "```json", "<|CHATBOT_TOKEN|>"],
        CallFormat::CommandR,
    ),
    (&["<|tools_prefix|>"], CallFormat::Apertus),
    (&["<|channel|>", "<|message|>"], CallFormat::Harmony),
    (&["<|tool_call>call:"], CallFormat::Gemma),
    (&[">>>all", "<|start_header_id|>"], CallFormat::Functionary),
    (&["<|function_call|>"], CallFormat::FunctionCall),
    (&["<|role_sep|>", "<|message_sep|>"], CallFormat::GigaChat3),
    (&["<|tool_call_start|>"], CallFormat::Lfm2),
    (&["<|tool_list_start|>"], CallFormat::Lfm2),
    (&["List of tools: ["], CallFormat::Lfm2),
    (&["<tool_calls>"], CallFormat::ToolCalls),
    (&["<|tool_call|>"], CallFormat::Granite),
    (&["<tool_call>"], CallFormat::Hermes),
    (&["functools["], CallFormat::Functools),
    (&["[func_name1("], CallFormat::Pythonic),
];

/// Substrings to try next, for templates without markers.
const FAINT_SIGNS: [(&str, CallFormat); 4] = [
    ("xml_tools", CallFormat::Hermes),
    ("\"parameters\": ", CallFormat::Llama3),
    ("<|python_tag|>", CallFormat::Llama3),
    ("", CallFormat::Json),
];

impl CallFormat {
    /// Returns the format of a template.
    pub fn of(template: &str) -> CallFormat {
        let shows = |signs: &[&str]| signs.iter().all(|sign| template.contains(sign));
        let found = SIGNS.iter().find(|(signs, _)| shows(signs));
        if let Some((_, format)) = found {
            return *format;
        }
        let found = FAINT_SIGNS.iter().find(|(sign, _)| template.contains(sign));
        found.map_or(CallFormat::Json, |(_, format)| *format)
    }
}
