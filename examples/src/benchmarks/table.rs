//! A table of figures: markdown for people, JSON for programs.

use burn_remat::DisplayBytes;
use serde_json::{Map, Value, json};

use crate::paired::Spread;

/// A table of figures.
pub struct Table {
    /// Its heading.
    pub title: &'static str,
    /// What it shows and how it was measured.
    pub about: String,
    /// The names of its columns; the first is that of the rows' names.
    pub columns: Vec<String>,
    /// Its rows, each with a cell for every column.
    pub rows: Vec<Vec<Cell>>,
}

/// One figure, as text and as a value.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    value: Value,
}

impl Cell {
    /// A cell of text.
    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { value: text.clone().into(), text }
    }

    /// A number of things.
    pub fn count(count: impl TryInto<u64>) -> Self {
        count.try_into().map_or_else(|_| Self::none(), |count| Self { text: count.to_string(), value: count.into() })
    }

    /// Bytes, with a unit in the text.
    pub fn bytes(bytes: Option<u64>) -> Self {
        bytes.map_or_else(Self::none, |bytes| Self { text: DisplayBytes(bytes).to_string(), value: bytes.into() })
    }

    /// A share, as a percentage in the text.
    pub fn percent(share: Option<f64>) -> Self {
        share.map_or_else(Self::none, |share| Self { text: format!("{:.2}%", 100.0 * share), value: share.into() })
    }

    /// A number with one decimal place, such as samples per second.
    pub fn rate(rate: f64) -> Self {
        Self { text: format!("{rate:.1}"), value: rate.into() }
    }

    /// A cost in the unit of a graph.
    pub fn cost(cost: Option<f64>) -> Self {
        cost.map_or_else(Self::none, |cost| Self { text: format!("{cost:.0}"), value: cost.into() })
    }

    /// A ratio, such as `1.03x`.
    pub fn ratio(ratio: f64) -> Self {
        Self { text: format!("{ratio:.2}x"), value: ratio.into() }
    }

    /// A ratio with its quartiles.
    pub fn ratio_spread(spread: Spread) -> Self {
        let Spread { low, median, high } = spread;
        Self { text: format!("{median:.2}x ({low:.2}-{high:.2})"), value: spread.json() }
    }

    /// A measured figure with its quartiles, in `unit`.
    pub fn spread(spread: Spread, unit: &str) -> Self {
        let Spread { low, median, high } = spread;
        Self { text: format!("{median:.1} {unit} ({low:.1}-{high:.1})"), value: spread.json() }
    }

    /// No figure.
    pub fn none() -> Self {
        Self { text: "-".to_owned(), value: Value::Null }
    }
}

impl Table {
    /// The table below its heading and its paragraph.
    pub fn markdown(&self) -> String {
        let row = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
        let mut text = format!("## {}\n\n{}\n\n", self.title, self.about);
        text += &row(self.columns.iter().map(String::as_str).collect());
        text += &row(std::iter::once("---").chain(self.columns.iter().skip(1).map(|_| "---:")).collect());
        text.extend(self.rows.iter().map(|cells| row(cells.iter().map(|cell| &*cell.text).collect())));
        text
    }

    /// Each row as an object, by the names of the columns.
    pub fn json(&self) -> Value {
        let row = |cells: &Vec<Cell>| -> Map<String, Value> {
            self.columns.iter().cloned().zip(cells.iter().map(|cell| cell.value.clone())).collect()
        };
        json!({ "about": self.about, "rows": self.rows.iter().map(row).collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_says_the_same_in_markdown_and_in_json() {
        let spread = Spread { low: 0.98, median: 1.0, high: 1.25 };
        let table = Table {
            title: "Steps",
            about: "Two models.".to_owned(),
            columns: ["model", "time", "held", "bound"].map(str::to_owned).into(),
            rows: vec![vec![
                Cell::text("cnn"),
                Cell::ratio_spread(spread),
                Cell::bytes(Some(2048)),
                Cell::percent(None),
            ]],
        };
        let markdown = "## Steps\n\nTwo models.\n\n| model | time | held | bound |\n| --- | ---: | ---: | ---: |\n\
             | cnn | 1.00x (0.98-1.25) | 2.00 KiB | - |\n";
        assert_eq!(table.markdown(), markdown);
        let row = &table.json()["rows"][0];
        assert_eq!((&row["held"], &row["bound"], &row["time"]["high"]), (&2048.into(), &Value::Null, &Value::Null));
        assert_eq!((&row["model"], &row["time"]["upper_quartile"]), (&"cnn".into(), &1.25.into()));
    }
}
