//! Size limits of this project: no file over 500 lines, no function over 60, no signature with a tuple of more than three, no type of the
//! engine with more than 12 fields.
//!
//! Whatever is larger for a good reason gives that reason at the top of its file, on a line of its own:
//!
//! ```text
//! //! Larger than the rule: `name`, because it is one table.
//! ```
//!
//! `name` is the function or the type, or `this file`. A reason that is not needed any more has to go.
//!
//! Packages also contain everything that they are built from: no crate of the library includes a file from outside its folder.

use std::path::{Component, Path, PathBuf};

mod sources;

use sources::{code_of, end_of_item, read, rust_files, workspace};

const MOST_LINES: usize = 500;
const MOST_FUNCTION_LINES: usize = 60;
const MOST_IN_A_TUPLE: usize = 3;
const MOST_FIELDS: usize = 12;

/// Where types have no more than [`MOST_FIELDS`] fields.
const ENGINE: [&str; 2] = ["burn-remat-core/src", "burn-remat/src"];

/// What `cargo package` packs.
const PACKAGES: [&str; 5] =
    ["burn-remat", "burn-remat-core", "burn-remat-grammar", "burn-remat-macros", "burn-remat-plan"];

const EXCEPTION: &str = "Larger than the rule: `";
/// The fewest letters that count as a reason.
const LEAST_REASON: usize = 20;

#[test]
fn what_is_large_has_a_reason() {
    let root = workspace();
    let files = rust_files(&root);
    assert!(files.len() > 200, "the workspace is not where it was");
    let mut told = Vec::new();
    for path in files {
        let name = path.strip_prefix(&root).expect("it lies below");
        let is_engine = ENGINE.iter().any(|folder| name.starts_with(folder));
        told.extend(complaints(&read(&path), is_engine).into_iter().map(|line| format!("{}: {line}", name.display())));
    }
    assert!(told.is_empty(), "make it smaller, or say why at the top of the file:\n  {}", told.join("\n  "));
}

#[test]
fn the_code_map_names_every_file_of_the_engine_and_no_other() {
    let root = workspace();
    let map = std::fs::read_to_string(root.join("burn-remat/ARCHITECTURE.md")).expect("it is there");
    let named: Vec<&str> = map.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs")).collect();
    let files = rust_files(&root);
    let gone = named.iter().filter(|name| !files.iter().any(|file| file.ends_with(name)));
    let gone: Vec<_> = gone.collect();
    assert!(gone.is_empty(), "ARCHITECTURE.md names files that are not there: {gone:?}");
    let is_named = |file: &&PathBuf| named.iter().any(|name| file.ends_with(name));
    let is_mapped = |file: &&PathBuf| {
        let is_root = ["lib.rs", "mod.rs"].iter().any(|name| file.ends_with(name));
        !is_root && ENGINE.iter().any(|folder| file.starts_with(root.join(folder)))
    };
    let missing: Vec<_> = files.iter().filter(is_mapped).filter(|file| !is_named(file)).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md does not name these files: {missing:#?}");
}

#[test]
fn a_package_holds_its_licences_and_all_files_that_it_includes() {
    for package in PACKAGES {
        let folder = workspace().join(package);
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            assert!(folder.join(licence).exists(), "{package} has no {licence}");
        }
        for file in rust_files(&folder) {
            let within = file.strip_prefix(&folder).expect("it lies below");
            let outside = files_from_outside(&read(&file), within);
            assert!(outside.is_empty(), "{} includes what is not packed with it: {outside:?}", file.display());
        }
    }
}

/// Files that the source file at `within` its package includes from outside the package.
fn files_from_outside(text: &str, within: &Path) -> Vec<String> {
    let included = ["#[path = \"", "include!(\"", "include_str!(\"", "include_bytes!(\""]
        .iter()
        .flat_map(|begin| text.split(begin).skip(1))
        .filter_map(|rest| rest.split('"').next());
    let is_outside = |file: &&str| {
        let folders = within.parent().unwrap_or(within).join(file);
        let mut depth = 0;
        folders.components().any(|part| {
            depth += if part == Component::ParentDir { -1 } else { 1 };
            depth < 0
        })
    };
    included.filter(is_outside).map(str::to_owned).collect()
}

#[test]
fn a_file_from_outside_of_a_package_is_found() {
    let outside = |text: &str| files_from_outside(text, Path::new("src/deep/file.rs"));
    let up = |begin: &str, ups: usize| format!("{begin}\"{}README.md\"", "../".repeat(ups));
    for begin in ["#[path = ", "include!(", "include_str!(", "include_bytes!("] {
        assert_eq!(outside(&up(begin, 2)), [""; 0]);
        assert_eq!(outside(&up(begin, 3)), ["../../../README.md"]);
    }
}

/// Something that is larger than the rule.
struct Large {
    name: String,
    what: String,
}

/// What is wrong with a file.
fn complaints(text: &str, is_engine: bool) -> Vec<String> {
    let found = larger_than_the_rule(text, is_engine);
    let reasons = reasons(text);
    let is_excused = |large: &&Large| !reasons.iter().any(|(name, _)| *name == large.name);
    let mut told: Vec<String> =
        found.iter().filter(is_excused).map(|large| format!("`{}` {}", large.name, large.what)).collect();
    for (name, reason) in reasons {
        if !found.iter().any(|large| large.name == name) {
            told.push(format!("`{name}` needs no reason any more"));
        } else if !reason.starts_with(", because ") || reason.len() < LEAST_REASON {
            told.push(format!("`{name}` has no reason"));
        }
    }
    told
}

/// Names and reasons in the comment at the beginning of a file.
fn reasons(text: &str) -> Vec<(String, String)> {
    let comment = text.lines().take_while(|line| line.starts_with("//") || line.is_empty());
    let lines = comment.map(|line| line.trim_start_matches(['/', '!']).trim());
    let one = |line: &str| line.strip_prefix(EXCEPTION)?.split_once('`').map(|(name, rest)| (name.into(), rest.into()));
    lines.filter_map(one).collect()
}

fn larger_than_the_rule(text: &str, is_engine: bool) -> Vec<Large> {
    let mut found = Vec::new();
    let mut add = |name: &str, is_large: bool, what: String| {
        if is_large {
            found.push(Large { name: name.to_owned(), what });
        }
    };
    let lines = text.lines().count();
    add("this file", lines > MOST_LINES, format!("has {lines} lines"));
    let code = code_of(text);
    for (name, item) in items(&code, "fn ") {
        let lines = item.lines().count();
        add(name, lines > MOST_FUNCTION_LINES, format!("has {lines} lines"));
        let parts = largest_tuple(item.split('{').next().unwrap_or_default());
        add(name, parts > MOST_IN_A_TUPLE, format!("has a tuple of {parts} in its signature"));
    }
    for (name, item) in items(&code, "struct ").filter(|_| is_engine) {
        let fields = item.split_once('{').map_or(0, |(_, fields)| count_fields(fields));
        add(name, fields > MOST_FIELDS, format!("has {fields} fields"));
    }
    found
}

/// Items that begin with a word, each with its name.
fn items<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let is_word = |at: usize| !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
    code.match_indices(word).filter(move |&(at, _)| is_word(at)).filter_map(move |(at, _)| {
        let item = &code[at..at + end_of_item(&code[at..])];
        let name = item[word.len()..].split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()?;
        (!name.is_empty()).then_some((name, item))
    })
}

/// Parts of the largest tuple of a signature, whose first parentheses are its parameters.
fn largest_tuple(signature: &str) -> usize {
    let mut largest = 0;
    for (at, _) in signature.match_indices('(') {
        let before = signature[..at].trim_end();
        // The parameters of the function itself or of a closure.
        let is_call = ["Fn", "FnMut", "FnOnce", "fn"].iter().any(|name| before.ends_with(name));
        let is_first = !signature[..at].contains('(');
        if !is_call && !is_first {
            largest = largest.max(parts(&signature[at + 1..]));
        }
    }
    largest
}

/// Parts between commas, up to the parenthesis that closes.
fn parts(text: &str) -> usize {
    let (mut depth, mut parts, mut is_empty) = (0, 0, true);
    let mut before = ' ';
    for letter in text.chars() {
        match letter {
            ')' if depth == 0 => break,
            ',' if depth == 0 => (parts, is_empty) = (parts + 1, true),
            '(' | '[' | '<' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        is_empty &= letter.is_whitespace() || letter == ',';
        before = letter;
    }
    parts + usize::from(!is_empty)
}

/// Named fields of a struct: its braces have been opened.
fn count_fields(text: &str) -> usize {
    let (mut depth, mut fields, mut rest) = (0, 0, text);
    while let Some(letter) = rest.chars().next() {
        match letter {
            '}' if depth == 0 => break,
            ':' if depth == 0 && !rest.starts_with("::") => fields += 1,
            '(' | '[' | '<' | '{' => depth += 1,
            ')' | ']' | '}' | '>' => depth -= 1,
            _ => {}
        }
        let length = if rest.starts_with("::") || rest.starts_with("->") { 2 } else { letter.len_utf8() };
        rest = &rest[length..];
    }
    fields
}

#[test]
fn what_is_too_large_is_found() {
    let long = |name: &str, lines: usize| format!("fn {name}() {{\n{}}}\n", "    // {\n".repeat(lines - 2));
    let told = |text: &str| complaints(text, true);
    assert_eq!(told(&long("a", 60)), [""; 0]);
    assert_eq!(told(&long("a", 61)), ["`a` has 61 lines"]);
    assert_eq!(told(&"\n".repeat(501)), ["`this file` has 501 lines"]);
    let pair =
        "fn a(f: impl Fn(u8, u8, u8, u8) -> (u8, u8), (b, c): (u8, Vec<(u8, u8)>)) -> [(u8, u8, (u8, u8)); 2] {}";
    assert_eq!(told(pair), [""; 0]);
    assert_eq!(
        told("fn a(b: u8, c: u8, d: u8, e: u8) -> Result<(u8, u8, u8, u8), E> {}"),
        ["`a` has a tuple of 4 in its signature"]
    );
    let fields = |count: u8| {
        let names: String =
            (0..count).map(|field| format!("    pub f{field}: a::Map<u8, fn(u8) -> b::C>,\n")).collect();
        format!("pub struct A<T: U> {{\n{names}}}\n")
    };
    assert_eq!(told(&fields(12)), [""; 0]);
    assert_eq!(told(&fields(13)), ["`A` has 13 fields"]);
    assert_eq!(complaints(&fields(13), false), [""; 0]);
}

#[test]
fn a_reason_excuses_what_it_names_and_goes_when_it_is_not_needed() {
    let long = format!("fn a() {{\n{}}}\n", "    b();\n".repeat(60));
    let with = |reason: &str| {
        complaints(&format!("//! What it is.\n//!\n//! Larger than the rule: `{reason}\n\n{long}"), true)
    };
    assert_eq!(with("a`, because it is one table."), [""; 0]);
    assert_eq!(with("a`"), ["`a` has no reason"]);
    assert_eq!(with("b`, because it is one table."), ["`a` has 62 lines", "`b` needs no reason any more"]);
    // Only at the top.
    assert_eq!(
        complaints(&format!("{long}// Larger than the rule: `a`, because it is one table.\n"), true),
        ["`a` has 62 lines"]
    );
}
