//! Built-in templates under llama.cpp's names: texts before and after each role's message,
//! converted to Jinja like any other template.

use serde_json::Value as Json;

/// A template with fixed texts around messages.
struct BuiltinTemplate {
    name: &'static str,
    /// Texts before and after a system message; `None` if it is unsupported.
    system: Option<(&'static str, &'static str)>,
    user: (&'static str, &'static str),
    assistant: (&'static str, &'static str),
    /// Text before the assistant's answer.
    answer: &'static str,
    /// Whether white space around messages is trimmed.
    trims: bool,
    /// Whether a system message is merged with the user message after it.
    is_joined: bool,
}

const fn row(
    name: &'static str,
    system: (&'static str, &'static str),
    user: (&'static str, &'static str),
    assistant: (&'static str, &'static str),
    answer: &'static str,
) -> BuiltinTemplate {
    BuiltinTemplate {
        name,
        system: Some(system),
        user,
        assistant,
        answer,
        trims: false,
        is_joined: false,
    }
}

const fn trimmed(row: BuiltinTemplate) -> BuiltinTemplate {
    BuiltinTemplate { trims: true, ..row }
}

const fn joined(row: BuiltinTemplate) -> BuiltinTemplate {
    BuiltinTemplate {
        is_joined: true,
        ..row
    }
}

/// All built-in templates.
const ROWS: [BuiltinTemplate; 25] = [
    row(
        "chatml",
        ("<|im_start|>system\n", "<|im_end|>\n"),
        ("<|im_start|>user\n", "<|im_end|>\n"),
        ("<|im_start|>assistant\n", "<|im_end|>\n"),
        "<|im_start|>assistant\n",
    ),
    joined(row(
        "llama2",
        ("[INST] <<SYS>>\n", "\n<</SYS>>\n\n"),
        ("[INST] ", " [/INST]"),
        (" ", " </s><s>"),
        "",
    )),
    trimmed(row(
        "llama3",
        (
            "<|start_header_id|>system<|end_header_id|>\n\n",
            "<|eot_id|>",
        ),
        ("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
        (
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            "<|eot_id|>",
        ),
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    )),
    trimmed(row(
        "llama4",
        ("<|header_start|>system<|header_end|>\n\n", "<|eot|>"),
        ("<|header_start|>user<|header_end|>\n\n", "<|eot|>"),
        ("<|header_start|>assistant<|header_end|>\n\n", "<|eot|>"),
        "<|header_start|>assistant<|header_end|>\n\n",
    )),
    joined(row(
        "mistral-v1",
        (" [INST] ", "\n\n"),
        (" [INST] ", " [/INST]"),
        (" ", "</s>"),
        "",
    )),
    joined(row(
        "mistral-v3",
        ("[INST] ", "\n\n"),
        ("[INST] ", "[/INST]"),
        (" ", "</s>"),
        "",
    )),
    joined(row(
        "mistral-v3-tekken",
        ("[INST]", "\n\n"),
        ("[INST]", "[/INST]"),
        ("", "</s>"),
        "",
    )),
    row(
        "mistral-v7",
        ("[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"),
        ("[INST] ", "[/INST]"),
        (" ", "</s>"),
        "",
    ),
    row(
        "mistral-v7-tekken",
        ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        ("[INST]", "[/INST]"),
        ("", "</s>"),
        "",
    ),
    row(
        "phi3",
        ("<|system|>\n", "<|end|>\n"),
        ("<|user|>\n", "<|end|>\n"),
        ("<|assistant|>\n", "<|end|>\n"),
        "<|assistant|>\n",
    ),
    row(
        "phi4",
        ("<|im_start|>system<|im_sep|>", "<|im_end|>"),
        ("<|im_start|>user<|im_sep|>", "<|im_end|>"),
        ("<|im_start|>assistant<|im_sep|>", "<|im_end|>"),
        "<|im_start|>assistant<|im_sep|>",
    ),
    row(
        "falcon3",
        ("<|system|>\n", "\n"),
        ("<|user|>\n", "\n"),
        ("<|assistant|>\n", "\n"),
        "<|assistant|>\n",
    ),
    row(
        "zephyr",
        ("<|system|>\n", "<|endoftext|>\n"),
        ("<|user|>\n", "<|endoftext|>\n"),
        ("<|assistant|>\n", "<|endoftext|>\n"),
        "<|assistant|>\n",
    ),
    trimmed(BuiltinTemplate {
        system: None,
        ..row(
            "gemma",
            ("", ""),
            ("<start_of_turn>user\n", "<end_of_turn>\n"),
            ("<start_of_turn>model\n", "<end_of_turn>\n"),
            "<start_of_turn>model\n",
        )
    }),
    row(
        "openchat",
        ("", "<|end_of_turn|>"),
        ("GPT4 Correct User: ", "<|end_of_turn|>"),
        ("GPT4 Correct Assistant: ", "<|end_of_turn|>"),
        "GPT4 Correct Assistant:",
    ),
    row(
        "vicuna",
        ("", "\n\n"),
        ("USER: ", "\n"),
        ("ASSISTANT: ", "</s>\n"),
        "ASSISTANT:",
    ),
    row(
        "deepseek",
        ("", ""),
        ("### Instruction:\n", "\n"),
        ("### Response:\n", "\n<|EOT|>\n"),
        "### Response:\n",
    ),
    row(
        "deepseek2",
        ("", "\n\n"),
        ("User: ", "\n\n"),
        ("Assistant: ", "<｜end▁of▁sentence｜>"),
        "Assistant:",
    ),
    row(
        "deepseek3",
        ("", "\n\n"),
        ("<｜User｜>", ""),
        ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
        "<｜Assistant｜>",
    ),
    trimmed(row(
        "command-r",
        (
            "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>",
            "<|END_OF_TURN_TOKEN|>",
        ),
        (
            "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>",
            "<|END_OF_TURN_TOKEN|>",
        ),
        (
            "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
            "<|END_OF_TURN_TOKEN|>",
        ),
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    )),
    row(
        "glmedge",
        ("<|system|>\n", ""),
        ("<|user|>\n", ""),
        ("<|assistant|>\n", ""),
        "<|assistant|>",
    ),
    trimmed(row(
        "exaone3",
        ("[|system|]", "[|endofturn|]\n"),
        ("[|user|]", "\n"),
        ("[|assistant|]", "[|endofturn|]\n"),
        "[|assistant|]",
    )),
    row(
        "granite",
        (
            "<|start_of_role|>system<|end_of_role|>",
            "<|end_of_text|>\n",
        ),
        ("<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"),
        (
            "<|start_of_role|>assistant<|end_of_role|>",
            "<|end_of_text|>\n",
        ),
        "<|start_of_role|>assistant<|end_of_role|>",
    ),
    row(
        "kimi-k2",
        ("<|im_system|>system<|im_middle|>", "<|im_end|>"),
        ("<|im_user|>user<|im_middle|>", "<|im_end|>"),
        ("<|im_assistant|>assistant<|im_middle|>", "<|im_end|>"),
        "<|im_assistant|>assistant<|im_middle|>",
    ),
    trimmed(row(
        "rwkv-world",
        ("System: ", "\n\n"),
        ("User: ", "\n\n"),
        ("Assistant: ", "\n\n"),
        "Assistant:",
    )),
];

/// Returns the names of the built-in templates.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.name)
}

/// Returns the Jinja source of a built-in template.
pub(super) fn source(name: &str) -> Option<String> {
    let row = ROWS.iter().find(|row| row.name == name)?;
    let content = if row.trims {
        "message.content|trim"
    } else {
        "message.content"
    };
    let say = |(before, after): (&str, &str)| {
        let (before, after) = (Json::from(before), Json::from(after));
        format!("{{{{- {before} + {content} + {after} -}}}}")
    };
    let system = match row.system {
        Some(around) => say(around),
        None => "{{- raise_exception('there is no place for a system message') -}}".to_owned(),
    };
    let user = match row.is_joined {
        false => say(row.user),
        true => format!(
            "{{%- if loop.previtem is defined and loop.previtem.role == 'system' -%}}{}\
             {{%- else -%}}{}{{%- endif -%}}",
            say(("", row.user.1)),
            say(row.user)
        ),
    };
    let assistant = say(row.assistant);
    let answer = Json::from(row.answer);
    Some(format!(
        "{{%- for message in messages -%}}\
         {{%- if message.role == 'system' -%}}{system}\
         {{%- elif message.role == 'user' -%}}{user}\
         {{%- elif message.role == 'assistant' -%}}{assistant}\
         {{%- else -%}}{{{{- raise_exception('expected the role system, user or assistant') -}}}}\
         {{%- endif -%}}\
         {{%- endfor -%}}\
         {{%- if add_generation_prompt -%}}{{{{- {answer} -}}}}{{%- endif -%}}"
    ))
}
