//! The documents: the book's pages are in its contents and their code is compiled, links lead somewhere, and the README stays short.

mod sources;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sources::{read, workspace};

/// Two screens.
const MOST_README_LINES: usize = 110;
const MOST_COLUMNS: usize = 120;

/// The pages of the book.
fn pages() -> Vec<PathBuf> {
    let folder = workspace().join("docs/src");
    let entries = std::fs::read_dir(&folder).expect("the book is there");
    let paths = entries.map(|entry| entry.expect("a folder can be read to its end").path());
    let mut pages: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    pages.sort();
    assert!(pages.len() > 20, "the book is not where it was");
    pages
}

/// All markdown documents for readers.
fn documents() -> Vec<PathBuf> {
    let names = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "burn-remat/ARCHITECTURE.md"];
    names.iter().map(|name| workspace().join(name)).chain(pages()).collect()
}

fn name_of(page: &Path) -> String {
    page.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[test]
fn every_page_is_in_the_contents_and_its_code_is_compiled() {
    let contents = read(&workspace().join("docs/src/SUMMARY.md"));
    let compiled = read(&workspace().join("examples/src/book.rs"));
    for page in pages() {
        let name = name_of(&page);
        assert!(name == "SUMMARY.md" || contents.contains(&format!("({name})")), "SUMMARY.md does not list {name}");
        let has_code = read(&page).contains("```rust");
        let is_compiled = compiled.contains(&format!("\"docs/src/{name}\""));
        assert_eq!(has_code, is_compiled, "{name}: pages with Rust code, and no others, stand in examples/src/book.rs");
    }
}

#[test]
fn no_code_is_left_out_of_the_tests() {
    for document in documents() {
        assert!(!read(&document).contains("rust,ignore"), "{}: use `no_run`", document.display());
    }
}

#[test]
fn the_readme_fits_on_two_screens() {
    let readme = read(&workspace().join("README.md"));
    assert!(readme.lines().count() <= MOST_README_LINES, "it has {} lines", readme.lines().count());
    for line in readme.lines() {
        assert!(line.chars().count() <= MOST_COLUMNS, "longer than {MOST_COLUMNS} columns: {line}");
    }
}

#[test]
fn links_lead_to_files_and_headings_that_are_there() {
    let mut broken = Vec::new();
    for document in documents() {
        let folder = document.parent().expect("it lies in a folder");
        for link in links(&read(&document)) {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { document.clone() } else { folder.join(file) };
            let leads = target.exists() && (heading.is_empty() || headings(&read(&target)).contains(heading));
            if !leads {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The text without its blocks of code.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Where the links of a text lead, except those to other sites.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    targets.filter(|target| !target.contains("://")).map(str::to_owned).collect()
}

/// The names under which a text's headings can be linked to.
fn headings(text: &str) -> BTreeSet<String> {
    let prose = prose(text);
    let headings = prose
        .lines()
        .filter_map(|line| line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')));
    headings.map(anchor).collect()
}

/// Lower case, hyphens for spaces, and otherwise only letters, digits, hyphens and underscores.
fn anchor(heading: &str) -> String {
    let small = heading.trim().to_lowercase().replace(' ', "-");
    small.chars().filter(|&letter| letter.is_alphanumeric() || letter == '-' || letter == '_').collect()
}

#[test]
fn links_and_headings_are_found_where_they_are() {
    let text = "# Burn's own, `remat`\n[a](b.md#c) and [d](#e)\n[f](https://g)\n```text\n# no heading [h](i)\n```\n";
    assert_eq!(links(text), ["b.md#c", "#e"]);
    assert_eq!(headings(text), BTreeSet::from(["burns-own-remat".to_owned()]));
}
