//! Integration tests of the server, with the built-in model, over real connections.

mod access;
mod answers;
mod browser;
mod client;
mod constraints;
mod customs;
mod defaults;
mod fetching;
mod hostile;
mod images;
mod llama_server;
mod logging;
mod messages;
mod models;
mod ollama;
mod page;
mod page_chats;
mod page_looks;
mod page_text;
mod reasoning;
mod rerank;
mod sharing;
mod stored;
mod tabs;
mod watching;
mod web;
