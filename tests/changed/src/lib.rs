//! Files that somebody has edited: random changes of JSON, for tests of how files with errors are handled.
//!
//! A file is a tree. A change is one of its structure (a number, a text, a key, an item more or less), so that most changed files get past the
//! parser; occasionally bytes are cut or flipped instead. Complexity: O(size of the file) per change.

use serde_json::{Value, json};

/// A small generator of numbers (xorshift), the same on all machines. `BURN_REMAT_TEST_SEED` selects others.
pub struct Numbers(u64);

impl Default for Numbers {
    fn default() -> Self {
        let seed = std::env::var("BURN_REMAT_TEST_SEED").map_or(0, |seed| seed.parse::<u64>().expect("a number"));
        // Odd, so not 0, which would be followed by zeros forever.
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
}

impl Numbers {
    /// The next number below `limit`, or 0.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Returns how many of this many changed files are accepted, and prints it; if there are many files, also prints progress.
pub fn tried(
    what: &str,
    cases: usize,
    numbers: &mut Numbers,
    mut is_accepted: impl FnMut(&mut Numbers) -> bool,
) -> usize {
    let mut accepted = 0;
    for number in 1..=cases {
        accepted += usize::from(is_accepted(numbers));
        if number == cases || number.is_multiple_of(100_000) {
            println!("{number} changed {what}, {accepted} of them accepted");
        }
    }
    accepted
}

/// A JSON file with one to three changes.
///
/// # Panics
///
/// If it is not JSON.
pub fn changed(original: &str, texts: &[&str], numbers: &mut Numbers) -> Value {
    let mut tree = serde_json::from_str(original).expect("the original file is JSON");
    for _ in 0..=numbers.below(3) {
        change(&mut tree, texts, numbers);
    }
    tree
}

/// Changes one place of a tree. `texts` are some that have a meaning in it.
pub fn change(tree: &mut Value, texts: &[&str], numbers: &mut Numbers) {
    // Down to a random depth.
    let deeper = numbers.below(5) > 0;
    match tree {
        Value::Object(map) if deeper && !map.is_empty() => {
            let keys: Vec<String> = map.keys().cloned().collect();
            change(&mut map[numbers.one_of(&keys)], texts, numbers);
        }
        Value::Array(items) if deeper && !items.is_empty() => {
            let at = numbers.below(items.len());
            change(&mut items[at], texts, numbers);
        }
        Value::Object(map) => {
            let keys: Vec<String> = map.keys().cloned().collect();
            let Some(key) = keys.get(numbers.below(keys.len())) else { return };
            let value = map.remove(key).unwrap_or_default();
            if numbers.below(2) == 0 {
                map.insert(format!("{key}s"), value);
            }
        }
        Value::Array(items) => change_list(items, json!(0), numbers),
        Value::Number(number) => {
            let integer = number.as_i64().unwrap_or_default();
            let others = [
                json!(integer.wrapping_add(1)),
                json!(integer.wrapping_sub(1)),
                json!(integer.wrapping_neg()),
                json!(0),
                json!(u64::MAX),
                json!(1_u64 << 62),
                json!(1.8e19),
                json!(1e308),
                json!(5e-324),
                json!(0.5),
                json!("1"),
                Value::Null,
            ];
            *tree = numbers.one_of(&others).clone();
        }
        Value::String(text) => {
            *text = match numbers.below(3) {
                0 => text.chars().rev().collect(),
                1 => format!("{text}0"),
                _ if texts.is_empty() => String::new(),
                _ => (*numbers.one_of(texts)).to_owned(),
            };
        }
        _ => *tree = numbers.one_of(&[json!(true), json!(1), json!([]), json!({})]).clone(),
    }
}

/// Removes an item from a list, duplicates one, swaps two, or cuts the list; puts `new` into an empty one.
pub fn change_list<T: Clone>(items: &mut Vec<T>, new: T, numbers: &mut Numbers) {
    let (a, b) = (numbers.below(items.len()), numbers.below(items.len()));
    match numbers.below(4) {
        _ if items.is_empty() => items.push(new),
        0 => drop(items.remove(a)),
        1 => items.insert(a, items[b].clone()),
        2 => items.swap(a, b),
        _ => items.truncate(a),
    }
}

/// In one case of sixteen, damages the bytes of a text: it is cut off, or one bit is flipped, or some bytes are left out.
pub fn damage(text: String, numbers: &mut Numbers) -> String {
    if numbers.below(16) > 0 || text.is_empty() {
        return text;
    }
    let mut bytes = text.into_bytes();
    let at = numbers.below(bytes.len());
    match numbers.below(3) {
        0 => bytes.truncate(at),
        1 => bytes[at] ^= 1 << numbers.below(8),
        _ => drop(bytes.drain(at..(at + 9).min(bytes.len()))),
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
