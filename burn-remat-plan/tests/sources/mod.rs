//! The source files of the workspace, for tests that check its structure.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};

/// The workspace's folder.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All Rust files below `folder`, except build output.
pub fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut open) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).unwrap_or_else(|error| panic!("{}: {error}", next.display())) {
            let path = entry.expect("a folder can be read to its end").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                open.push(path);
            } else if name.ends_with(".rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// The text of a file.
pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text with spaces in place of comments, strings and character literals: what is left is code, in the same lines.
pub fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let follows_word = code.ends_with(|before: char| before.is_alphanumeric() || before == '_');
        let length = length_of_what_is_no_code(rest, follows_word);
        if length == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.extend(rest[..length].chars().map(|letter| if letter == '\n' { '\n' } else { ' ' }));
            rest = &rest[length..];
        }
    }
    code
}

/// Bytes of the comment, string or character literal with which `rest` begins; 0 if that is code.
fn length_of_what_is_no_code(rest: &str, follows_word: bool) -> usize {
    let through = |from: usize, end: &str| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return through(2, "*/");
    }
    if rest.starts_with('"') {
        return end_of_text(rest);
    }
    if rest.starts_with('\'') {
        // A lifetime has no second quote.
        let letters: Vec<(usize, char)> = rest.char_indices().take(4).collect();
        return match letters[..] {
            [_, (_, '\\'), _, ..] => through(3, "'"),
            [_, _, (at, '\''), ..] => at + 1,
            _ => 0,
        };
    }
    let raw = rest.strip_prefix('b').unwrap_or(rest).strip_prefix('r').filter(|_| !follows_word);
    if let Some(raw) = raw {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let from = rest.len() - raw.len() + hashes + 1;
            return through(from, &format!("\"{}", "#".repeat(hashes)));
        }
    }
    0
}

fn end_of_text(text: &str) -> usize {
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Where an item of code ends: at its semicolon, or where its braces close.
pub fn end_of_item(code: &str) -> usize {
    let mut depth = 0;
    for (at, letter) in code.char_indices() {
        match letter {
            ';' if depth == 0 => return at + 1,
            '{' | '(' | '[' => depth += 1,
            '}' if depth == 1 => return at + 1,
            '}' | ')' | ']' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

#[test]
fn code_is_what_is_neither_comment_nor_text() {
    let text = "fn a<'a>() { // {\n let x = ('{', '\\'', \"{\\\"\", r#\"{\"#, b\"{\"); /* { */ }";
    let code = code_of(text);
    assert_eq!(code.split_whitespace().collect::<String>(), "fna<'a>(){letx=(,,,,b);}");
    assert_eq!((code.len(), code.lines().count()), (text.len(), 2));
    assert_eq!(end_of_item(&code), code.len());
}
