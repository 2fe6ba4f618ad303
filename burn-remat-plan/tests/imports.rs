//! Modules import each other one way only: following the imports of a file never leads back to it.
//!
//! A file is a node. It points to every file that defines something it names in a `use` or by a path from `crate`, `self` or
//! `super`; if a module only passes a name on (`pub use`), it points to the file that defines the name. A module that passes a name on and does
//! not use it itself points nowhere for that. Test modules and documentation do not count, and neither does `mod`, by
//! which a parent only declares its children. This holds in every crate of the workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

mod sources;

use sources::{code_of, end_of_item, read, rust_files, workspace};

/// Every crate of the workspace that has more than one file, and its root file.
const CRATES: [(&str, &str); 6] = [
    ("burn-remat-core/src", "lib.rs"),
    ("burn-remat-plan/src", "lib.rs"),
    ("burn-remat-plan/src/bin/remat-plan", "main.rs"),
    ("burn-remat/src", "lib.rs"),
    ("burn-remat-macros/src", "lib.rs"),
    ("examples/src", "lib.rs"),
];

#[test]
fn no_crate_has_circles() {
    let circles_of = |&(folder, root): &(&str, &str)| {
        let sources = Sources::read(&workspace().join(folder), root);
        assert!(sources.modules.len() > 2, "{folder} is not where it was");
        let told = |circle: Vec<String>| format!("{folder}: {}", [&circle[..], &circle[..1]].concat().join(" -> "));
        circles(&sources.edges()).into_iter().map(told).collect::<Vec<_>>()
    };
    let told: Vec<String> = CRATES.iter().flat_map(circles_of).collect();
    assert!(told.is_empty(), "files that import each other in a circle:\n  {}", told.join("\n  "));
}

/// A module's path: `["planners", "auto"]`.
type Module = Vec<String>;

/// What a file contains.
struct Source {
    /// Relative to the crate's folder.
    file: String,
    names: Vec<Named>,
}

/// A path that a file names.
struct Named {
    /// From the crate's root.
    path: Module,
    /// The name under which the file passes it on, if it does.
    passed_on_as: Option<String>,
    /// Whether it does more than pass it on.
    is_used: bool,
}

struct Sources {
    modules: BTreeMap<Module, Source>,
}

impl Sources {
    fn read(folder: &Path, root: &str) -> Self {
        let mut modules = BTreeMap::new();
        for path in rust_files(folder) {
            let name = path.strip_prefix(folder).expect("it lies below");
            // Programs in their own right.
            if name.starts_with("bin") {
                continue;
            }
            let (module, text) = (module_of(name, root), read(&path));
            for (name, elsewhere) in modules_elsewhere(&text) {
                let module: Module = module.iter().cloned().chain([name]).collect();
                let text = read(&path.with_file_name(&elsewhere));
                let names = paths(&without_tests(&code_of(&text)), &module);
                modules.insert(module, Source { file: elsewhere, names });
            }
            let file = name.to_string_lossy().into_owned();
            let names = paths(&without_tests(&code_of(&text)), &module);
            modules.insert(module, Source { file, names });
        }
        Self { modules }
    }

    /// The files that each file points to.
    fn edges(&self) -> BTreeMap<String, BTreeSet<String>> {
        let target = |path: &Module| self.definition(path, &mut BTreeSet::new());
        let edges_of = |source: &Source| -> BTreeSet<String> {
            let used = source.names.iter().filter(|named| named.is_used);
            used.filter_map(|named| target(&named.path)).filter(|file| *file != source.file).collect()
        };
        self.modules.values().map(|source| (source.file.clone(), edges_of(source))).collect()
    }

    /// The file that defines what `path` names: that of the longest module that the path begins with, unless that module passes the next
    /// name on from elsewhere. `None` if it is not in this crate.
    fn definition(&self, path: &Module, seen: &mut BTreeSet<Module>) -> Option<String> {
        let length = (0..=path.len()).rev().find(|&length| self.modules.contains_key(&path[..length]))?;
        let source = &self.modules[&path[..length]];
        let Some(name) = path.get(length).filter(|_| seen.insert(path.clone())) else {
            return Some(source.file.clone());
        };
        let passed = source.names.iter().filter_map(|Named { path: from, passed_on_as: to, .. }| {
            let glob = from.last().is_some_and(|last| last == "*") && to.as_deref() == Some("*");
            let from = match glob {
                true => from[..from.len() - 1].iter().chain([name]).cloned().collect(),
                false if to.as_ref() == Some(name) => from.clone(),
                false => return None,
            };
            // What follows the name is part of the path.
            Some(from.into_iter().chain(path[length + 1..].iter().cloned()).collect::<Module>())
        });
        let behind = passed.filter_map(|from| self.definition(&from, seen)).next();
        Some(behind.unwrap_or_else(|| source.file.clone()))
    }
}

/// `planners/auto/mod.rs` and `planners/auto.rs` are both `["planners", "auto"]`.
fn module_of(file: &Path, root: &str) -> Module {
    if file == Path::new(root) {
        return Vec::new();
    }
    let mut path: PathBuf = file.with_extension("");
    if path.file_name().is_some_and(|name| name == "mod") {
        path.pop();
    }
    path.iter().map(|part| part.to_string_lossy().into_owned()).collect()
}

/// Modules with files outside the crate's folder, and these files.
fn modules_elsewhere(text: &str) -> Vec<(String, String)> {
    let parts = text.split("#[path = \"").skip(1);
    let one = |part: &str| {
        let (file, rest) = part.split_once("\"]")?;
        let name = rest.trim_start().strip_prefix("mod ")?.split_once(';')?.0;
        Some((name.to_owned(), file.to_owned()))
    };
    parts.filter_map(one).collect()
}

/// The code without the items after `#[cfg(test)]`, and without the paths of `pub(in ..)`.
fn without_tests(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("pub(in ") {
            rest.find(')').map_or(rest.len(), |end| end + 1)
        } else if let Some(item) = rest.strip_prefix("#[cfg(test)]") {
            rest.len() - item.len() + end_of_item(item)
        } else {
            kept.push(first);
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    kept
}

/// All paths that begin with `crate`, `self`, `super` or a name that a `use` brings in. A `pub use` passes its last names on; unless the file uses
/// such a name itself, it does nothing else with it.
fn paths(code: &str, module: &Module) -> Vec<Named> {
    let (mut uses, mut rest) = (Vec::new(), String::new());
    for statement in code.split_inclusive(';') {
        let Some(at) = find_use(statement) else {
            let mut words = statement.split_whitespace().rev().skip(1);
            if words.next() != Some("mod") {
                rest += statement;
            }
            continue;
        };
        let (before, after) = statement.split_at(at);
        let mut lines = before.rsplit(['}', '{', ';', ']']);
        let passes_on = lines.next().is_some_and(|words| words.trim_start().starts_with("pub"));
        rest += before;
        for (path, name) in tree(after["use ".len()..].trim_end_matches(';')) {
            uses.extend(rooted(&path, module, true).map(|path| (path, name, passes_on)));
        }
    }
    let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let words: BTreeSet<&str> = rest.split(|letter| !is_path(letter)).filter(|word| !word.is_empty()).collect();
    let is_used = |name: &str| words.iter().any(|word| word.split("::").next() == Some(name));
    let mut found = Vec::new();
    for word in words.iter().filter(|word| word.contains("::")) {
        let path: Vec<String> = word.split("::").map(str::to_owned).collect();
        let brought_in = uses.iter().find(|(_, name, _)| *name == path[0]);
        let path = match brought_in {
            Some((from, _, _)) => Some(from.iter().chain(&path[1..]).cloned().collect()),
            None => rooted(&path, module, false),
        };
        found.extend(path.map(|path| Named { path, passed_on_as: None, is_used: true }));
    }
    found.extend(uses.into_iter().map(|(path, name, passes_on)| Named {
        is_used: !passes_on || is_used(&name),
        path,
        passed_on_as: passes_on.then_some(name),
    }));
    found
}

fn find_use(statement: &str) -> Option<usize> {
    let is_word =
        |at: usize| statement[..at].chars().next_back().is_none_or(|before| !before.is_alphanumeric() && before != '_');
    statement.match_indices("use ").map(|(at, _)| at).find(|&at| is_word(at))
}

/// The paths of a `use` with their names: `a::{b, c::d as e}` is `a::b`, called `b`, and `a::c::d`, called `e`.
fn tree(text: &str) -> Vec<(Vec<String>, String)> {
    let text = text.trim();
    let Some((head, inner)) = text.split_once('{') else {
        let (path, name) = text.split_once(" as ").map_or((text, None), |(path, name)| (path, Some(name)));
        let mut path: Vec<String> = path.split("::").map(|part| part.trim().to_owned()).collect();
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        let name = name.map_or_else(|| path.last().cloned().unwrap_or_default(), |name| name.trim().to_owned());
        return vec![(path, name)];
    };
    let inner = inner.trim_end().trim_end_matches('}');
    let head: Vec<String> =
        head.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, letter) in inner.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[start..]);
    let below = parts.into_iter().filter(|part| !part.trim().is_empty()).flat_map(tree);
    let joined = below.map(|(path, name)| {
        let own = path == ["self"];
        let whole = head.iter().cloned().chain(path.into_iter().filter(|_| !own)).collect();
        (whole, if own { head.last().cloned().unwrap_or_default() } else { name })
    });
    joined.collect()
}

/// The path from the crate's root; `None` for one of another crate. In a `use`, a path may begin with a child of the module: whether that child
/// exists is seen later.
fn rooted(path: &[String], module: &Module, in_use: bool) -> Option<Module> {
    let mut base = module.clone();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &path[1..];
        }
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|part| part == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        "std" | "core" | "alloc" => return None,
        _ if in_use => {}
        _ => return None,
    }
    Some(base.into_iter().chain(rest.iter().cloned()).collect())
}

/// One circle for each group of files that lead to each other, the shortest through its first file.
fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = Vec::new();
    for start in edges.keys().filter(|start| !start.is_empty()) {
        // Breadth first: the way back to the start.
        let mut from: BTreeMap<&str, &str> = BTreeMap::new();
        let mut open = std::collections::VecDeque::from([start.as_str()]);
        while let Some(at) = open.pop_front() {
            for next in edges.get(at).into_iter().flatten() {
                if next == start {
                    let mut way = vec![at];
                    while way[way.len() - 1] != start {
                        way.push(from[way[way.len() - 1]]);
                    }
                    let way: Vec<String> = way.into_iter().rev().map(str::to_owned).collect();
                    let set: BTreeSet<&String> = way.iter().collect();
                    if !found.iter().any(|known| known.iter().collect::<BTreeSet<_>>() == set) {
                        found.push(way);
                    }
                    open.clear();
                    break;
                }
                if !from.contains_key(next.as_str()) && next != start {
                    from.insert(next, at);
                    open.push_back(next);
                }
            }
        }
    }
    found
}

#[test]
fn a_use_is_read_to_the_last_name() {
    let found = tree("crate::{a::{self, B}, c::D as E, f}");
    let text: Vec<String> = found.iter().map(|(path, name)| format!("{} {name}", path.join("::"))).collect();
    assert_eq!(text, ["crate::a a", "crate::a::B B", "crate::c::D E", "crate::f f"]);
}

#[test]
fn a_planted_circle_is_found_through_a_name_that_is_passed_on() {
    let source = |file: &str, text: &str, module: &[&str]| {
        let module: Module = module.iter().map(|&part| part.to_owned()).collect();
        (module.clone(), Source { file: file.to_owned(), names: paths(&without_tests(&code_of(text)), &module) })
    };
    let lib = source("lib.rs", "mod a; mod b; pub use a::one;", &[]);
    let a = source("a.rs", "pub fn one() { super::b::two() }\n#[cfg(test)]\nmod tests { use crate::c::X; }", &["a"]);
    let b = source(
        "b.rs",
        "// use crate::c::X;\nuse crate::one;\npub fn two() { let _ = \"use crate::c;\"; one() }",
        &["b"],
    );
    let sources = Sources { modules: [lib, a, b].into() };
    assert_eq!(circles(&sources.edges()), [["a.rs", "b.rs"]]);
}
