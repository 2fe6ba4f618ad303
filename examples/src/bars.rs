//! A bar chart of batch sizes: two bars for each row.

use std::error::Error;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const FONT: &str = "sans-serif";
/// Colours that the colour-blind can tell apart (Okabe & Ito).
const STORE_ALL: RGBColor = RGBColor(150, 150, 150);
const REMAT: RGBColor = RGBColor(0, 114, 178);
const SIZE: u32 = 16;
const ROW: i32 = 58;
const BAR: i32 = 21;
/// Space left of the bars, for names.
const LEFT: i32 = 190;
const WIDTH: i32 = 860;

/// One training program.
pub struct Row {
    /// Its name.
    pub name: String,
    /// The largest batch that fits if everything is kept.
    pub store_all: usize,
    /// The largest batch that fits with recomputation.
    pub remat: usize,
    /// The time that recomputation then adds, as a share.
    pub overhead: f64,
}

/// Draws `rows` as an SVG. The length of a bar is its batch size relative to that of store-all, which has the same length in
/// every row: the batch sizes themselves cannot be compared between programs.
///
/// # Errors
///
/// What the drawing library reports.
pub fn draw(rows: &[Row], title: &str) -> Result<String, String> {
    let mut text = String::new();
    let height = 86 + ROW * rows.len() as i32;
    draw_on(&mut text, rows, title, height).map_err(|error| error.to_string())?;
    Ok(text)
}

fn draw_on<'a>(text: &'a mut String, rows: &[Row], title: &str, height: i32) -> Result<(), Box<dyn Error + 'a>> {
    let root = SVGBackend::with_string(text, (WIDTH as u32, height as u32)).into_drawing_area();
    let black = |size: u32| TextStyle::from((FONT, size).into_font()).color(&BLACK);
    root.fill(&WHITE)?;
    root.draw(&Text::new(title.to_owned(), (20, 14), black(SIZE + 6)))?;
    for (number, (name, color)) in [("store-all", STORE_ALL), ("remat", REMAT)].into_iter().enumerate() {
        let left = LEFT + 120 * number as i32;
        let bar = Rectangle::new([(left, 50), (left + 22, 64)], color.filled());
        root.draw(&bar)?;
        root.draw(&Text::new(name, (left + 30, 48), black(SIZE)))?;
    }
    let ratio = |row: &Row| row.remat as f64 / row.store_all.max(1) as f64;
    let unit = f64::from(WIDTH - LEFT - 200) / rows.iter().map(ratio).fold(1.0, f64::max);
    for (number, row) in rows.iter().enumerate() {
        let top = 82 + ROW * number as i32;
        let name = black(SIZE).pos(Pos::new(HPos::Right, VPos::Center));
        root.draw(&Text::new(row.name.clone(), (LEFT - 12, top + BAR), name))?;
        let notes = [
            (if row.store_all == 0 { 0.0 } else { 1.0 }, STORE_ALL, row.store_all.to_string()),
            (ratio(row), REMAT, format!("{}: {:.1}x, {:.0}% slower", row.remat, ratio(row), 100.0 * row.overhead)),
        ];
        for (at, (length, color, note)) in notes.into_iter().enumerate() {
            let y = top + at as i32 * BAR;
            let right = LEFT + (unit * length) as i32;
            let bar = Rectangle::new([(LEFT, y + 1), (right, y + BAR - 1)], color.filled());
            root.draw(&bar)?;
            let beside = black(SIZE).pos(Pos::new(HPos::Left, VPos::Center));
            root.draw(&Text::new(note, (right + 8, y + BAR / 2), beside))?;
        }
    }
    root.present()?;
    Ok(())
}
