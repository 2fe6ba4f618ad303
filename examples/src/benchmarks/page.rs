//! The tables' places on a page: each is between two marks, `<!-- table NAME -->` and `<!-- end of NAME -->`, on lines of their own.

/// `page` with `table` between the marks of the table called `name`.
///
/// # Errors
///
/// A page without these marks.
pub fn with_table(page: &str, name: &str, table: &str) -> Result<String, String> {
    let (before, after) = split(page, name)?;
    Ok(format!("{before}\n\n{}\n\n{after}", table.trim()))
}

/// The text between the marks of the table called `name`.
///
/// # Errors
///
/// A page without these marks.
pub fn table<'a>(page: &'a str, name: &str) -> Result<&'a str, String> {
    let (before, after) = split(page, name)?;
    Ok(page[before.len()..page.len() - after.len()].trim())
}

/// The page up to and including the first mark, and from the second mark on.
fn split<'a>(page: &'a str, name: &str) -> Result<(&'a str, &'a str), String> {
    let (begin, end) = (format!("<!-- table {name} -->"), format!("<!-- end of {name} -->"));
    let missing = |mark: &str| format!("there is no line `{mark}` for the table `{name}`");
    let after_begin = page.find(&begin).ok_or_else(|| missing(&begin))? + begin.len();
    let length = page[after_begin..].find(&end).ok_or_else(|| missing(&end))?;
    Ok((&page[..after_begin], &page[after_begin + length..]))
}

#[cfg(test)]
mod tests {
    use super::super::TABLES;
    use super::*;

    const PAGE: &str = include_str!("../../../BENCHMARKS.md");

    #[test]
    fn a_table_takes_its_place_and_nothing_else_changes() {
        let page = "# Page\n<!-- table a -->\n\nold\n\n<!-- end of a -->\nwords\n<!-- table b -->\n<!-- end of b -->\n";
        let changed = with_table(page, "a", "new\n").unwrap();
        assert_eq!(changed, page.replace("old", "new"));
        let both = with_table(&changed, "b", "| b |").unwrap();
        assert_eq!((table(&both, "a"), table(&both, "b")), (Ok("new"), Ok("| b |")));
        assert_eq!(with_table(&both, "b", "| b |").as_ref(), Ok(&both), "a second time nothing changes");
        assert!(with_table(page, "c", "new").unwrap_err().contains("<!-- table c -->"));
        assert!(table(&page.replace("<!-- end of b -->", ""), "b").unwrap_err().contains("<!-- end of b -->"));
    }

    #[test]
    fn every_table_of_the_page_was_measured_on_one_state_of_the_code() {
        let mut commits = Vec::new();
        for (name, _) in TABLES {
            let table = table(PAGE, name).unwrap();
            let state = table.lines().find_map(|line| line.split_once(" at commit ")?.1.split(':').next());
            commits.push((name, state.unwrap_or_else(|| panic!("{name} does not say at which commit: {table}"))));
        }
        let (_, first) = commits[0];
        assert!(commits.iter().all(|&(_, commit)| commit == first), "measure all tables again: {commits:?}");
    }
}
