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

/// What is between the marks of the table called `name`.
///
/// # Errors
///
/// A page without these marks.
pub fn table<'a>(page: &'a str, name: &str) -> Result<&'a str, String> {
    let (before, after) = split(page, name)?;
    Ok(page[before.len()..page.len() - after.len()].trim())
}

/// The page up to and with the first mark, and from the second on.
fn split<'a>(page: &'a str, name: &str) -> Result<(&'a str, &'a str), String> {
    let (begin, end) = (format!("<!-- table {name} -->"), format!("<!-- end of {name} -->"));
    let missing = |mark: &str| format!("there is no line `{mark}` for the table `{name}`");
    let after_begin = page.find(&begin).ok_or_else(|| missing(&begin))? + begin.len();
    let length = page[after_begin..].find(&end).ok_or_else(|| missing(&end))?;
    Ok((&page[..after_begin], &page[after_begin + length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_takes_its_place_and_nothing_else_changes() {
        let page = "# Page\n<!-- table a -->\n\nold\n\n<!-- end of a -->\nwords\n<!-- table b -->\n<!-- end of b -->\n";
        let changed = with_table(page, "a", "new\n").unwrap();
        assert_eq!(changed, page.replace("old", "new"));
        let both = with_table(&changed, "b", "| b |").unwrap();
        assert_eq!((table(&both, "a"), table(&both, "b")), (Ok("new"), Ok("| b |")));
        assert_eq!(with_table(&both, "b", "| b |").as_ref(), Ok(&both), "a second time it is as it was");
        assert!(with_table(page, "c", "new").unwrap_err().contains("<!-- table c -->"));
        assert!(table(&page.replace("<!-- end of b -->", ""), "b").unwrap_err().contains("<!-- end of b -->"));
    }
}
