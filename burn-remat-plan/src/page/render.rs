//! The page as text: a template into which the style, the script and the data are inserted.
//!
//! The data is in an element of its own, as JSON in which every `<`, `>` and `&` is escaped, so that no name in it can end that element or begin
//! another. The script puts names on the page as text, never as markup.

use super::model::Data;

const TEMPLATE: &str = include_str!("assets/page.html");
const STYLE: &str = include_str!("assets/page.css");
const SCRIPT: [&str; 6] = [
    include_str!("assets/text.js"),
    include_str!("assets/memory.js"),
    include_str!("assets/axes.js"),
    include_str!("assets/frontier.js"),
    include_str!("assets/table.js"),
    include_str!("assets/main.js"),
];

/// The page.
pub(super) fn html(data: &Data) -> String {
    let mut page = String::new();
    // Each mark is searched for after the previous one, so that inserted text is never searched.
    let mut rest = TEMPLATE;
    let parts: [(&str, String); 4] = [
        ("{{title}}", escaped(&data.name)),
        ("{{style}}", STYLE.to_owned()),
        ("{{data}}", json(data)),
        ("{{script}}", SCRIPT.join("\n")),
    ];
    for (mark, text) in parts {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        page.push_str(before);
        page.push_str(&text);
        rest = after;
    }
    page.push_str(rest);
    page
}

/// Text for an element of HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// JSON for a script element. These characters occur only in strings, where they may be written as escape sequences.
pub(super) fn json(data: &Data) -> String {
    let text = serde_json::to_string(data).expect("texts, integers and finite numbers always serialize");
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}
