//! The picture of a sweep: overhead against budget, one curve per planner, as in Checkmate's figure 5.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::points::{Point, Sweep};

const SIZE: (u32, u32) = (960, 600);
/// Width of the legend on the right.
const LEGEND: i32 = 190;
const FONT: &str = "sans-serif";
/// Colours that colour-blind readers can tell apart (Okabe & Ito). Further curves repeat them.
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];
/// Curves are cut at this overhead, so that one bad heuristic does not flatten all others.
const HIGHEST: f64 = 2.0;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failure<'a> = Box<dyn Error + 'a>;

/// Draws the sweep.
pub fn svg(sweep: &Sweep) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(&root, sweep).map_err(|error| error.to_string())?;
        root.present().map_err(|error| error.to_string())?;
    }
    Ok(text)
}

/// A curve: the planner, and its budgets (in the unit of the axis) with their overheads in percent.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
    status: &'static str,
}

fn curves(points: &[Point], unit: f64) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for point in points {
        if curves.last().is_none_or(|curve| curve.name != point.planner) {
            curves.push(Curve { name: point.planner.clone(), points: Vec::new(), status: point.status });
        }
        let Some(curve) = curves.last_mut() else { continue };
        if let Some(overhead) = point.file.as_ref().and_then(|file| file.overhead) {
            curve.points.push((point.budget as f64 / unit, 100.0 * overhead));
        }
    }
    curves
}

fn unit_of(bytes: u64) -> (f64, &'static str) {
    let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    units.into_iter().find(|&(size, _)| bytes >= 2 * size).map_or((1.0, "bytes"), |(size, name)| (size as f64, name))
}

fn draw<'a>(root: &Area<'a>, sweep: &Sweep) -> Result<(), Failure<'a>> {
    root.fill(&WHITE)?;
    let (unit, unit_name) = unit_of(sweep.store_all_peak);
    let curves = curves(&sweep.points, unit);
    let (least, most) = (sweep.minimum as f64 / unit, sweep.store_all_peak as f64 / unit);
    let margin = ((most - least) * 0.08).max(most * 0.01).max(1e-9);
    let (left, right) = ((least - margin).max(0.0), most + margin / 2.0);
    let worst = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1).fold(0.0, f64::max);
    let top = (worst * 1.06).clamp(5.0, 100.0 * HIGHEST);
    let bottom = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1).fold(0.0, f64::min) * 1.06;
    let bottom = bottom.min(-0.02 * top);

    let (plot, legend) = root.split_horizontally(SIZE.0 as i32 - LEGEND);
    let mut chart = ChartBuilder::on(&plot)
        .caption(&sweep.title, (FONT, 24))
        .margin(14)
        .x_label_area_size(58)
        .y_label_area_size(76)
        .build_cartesian_2d(left..right, bottom..top)?;
    let digits = if most >= 100.0 { 0 } else { 2 };
    chart
        .configure_mesh()
        .x_desc(format!("budget ({unit_name})"))
        .y_desc("overhead (% of store-all makespan)")
        .axis_desc_style((FONT, 20))
        .label_style((FONT, 18))
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(RGBColor(225, 225, 225))
        .x_labels(7)
        .y_labels(8)
        .x_label_formatter(&|x| format!("{x:.digits$}"))
        .y_label_formatter(&|y| if top < 10.0 { format!("{y:.1}") } else { format!("{y:.0}") })
        .draw()?;
    chart.draw_series([Rectangle::new([(left, bottom), (least, top)], RGBColor(120, 120, 120).mix(0.25).filled())])?;
    chart.draw_series(LineSeries::new([(most, bottom), (most, top)], RGBColor(120, 120, 120).stroke_width(2)))?;
    for (i, curve) in curves.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        // Curves that coincide must all be visible: earlier ones are drawn wider.
        let width = 2 + 2 * (curves.len() - 1 - i).min(4) as u32;
        for line in below(&curve.points, top) {
            chart.draw_series(LineSeries::new(line, color.stroke_width(width)))?;
        }
        for &at in curve.points.iter().filter(|point| point.1 <= top) {
            chart.draw_series([EmptyElement::at(at) + mark(i, (0, 0), color)])?;
        }
    }
    draw_legend(&legend, &curves, worst > top)
}

/// The parts of a curve below `top`, cut where it crosses.
fn below(points: &[(f64, f64)], top: f64) -> Vec<Vec<(f64, f64)>> {
    let mut parts: Vec<Vec<(f64, f64)>> = vec![Vec::new()];
    for pair in points.windows(2) {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        let crossing = (x0 + (x1 - x0) * (top - y0) / (y1 - y0), top);
        match (y0 <= top, y1 <= top) {
            (true, true) => add(&mut parts, &[pair[0], pair[1]]),
            (true, false) => {
                add(&mut parts, &[pair[0], crossing]);
                parts.push(Vec::new());
            }
            (false, true) => add(&mut parts, &[crossing, pair[1]]),
            (false, false) => {}
        }
    }
    parts.retain(|part| part.len() > 1);
    parts
}

fn add(parts: &mut [Vec<(f64, f64)>], points: &[(f64, f64)]) {
    if let Some(part) = parts.last_mut() {
        part.extend(points);
    }
}

/// The mark of curve `i`: a square, a diamond or a triangle, so that neighbouring curves differ even without colour.
fn mark(i: usize, at: (i32, i32), color: RGBColor) -> Polygon<(i32, i32)> {
    let (x, y) = at;
    let corners = match i % 4 {
        0 => vec![(-4, -4), (4, -4), (4, 4), (-4, 4)],
        1 => vec![(0, -6), (6, 0), (0, 6), (-6, 0)],
        2 => vec![(0, -6), (5, 4), (-5, 4)],
        _ => vec![(0, 6), (5, -4), (-5, -4)],
    };
    Polygon::new(corners.into_iter().map(|(dx, dy)| (x + dx, y + dy)).collect::<Vec<_>>(), color.filled())
}

fn draw_legend<'a>(area: &Area<'a>, curves: &[Curve], is_cut: bool) -> Result<(), Failure<'a>> {
    let style = (FONT, 18).into_font();
    let mut y = 60;
    for (i, curve) in curves.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        area.draw(&PathElement::new(vec![(4, y), (32, y)], color.stroke_width(3)))?;
        area.draw(&mark(i, (18, y), color))?;
        area.draw(&Text::new(curve.name.clone(), (40, y - 9), style.clone()))?;
        if curve.points.is_empty() {
            y += 20;
            area.draw(&Text::new(format!("({})", curve.status), (40, y - 9), (FONT, 15).into_font()))?;
        }
        y += 27;
    }
    y += 12;
    let small = (FONT, 15).into_font();
    let grey = RGBColor(120, 120, 120);
    area.draw(&Rectangle::new([(8, y - 8), (28, y + 8)], grey.mix(0.25).filled()))?;
    area.draw(&Text::new("infeasible", (40, y - 8), small.clone()))?;
    y += 27;
    area.draw(&PathElement::new(vec![(18, y - 9), (18, y + 9)], grey.stroke_width(2)))?;
    area.draw(&Text::new("store-all peak", (40, y - 8), small.clone()))?;
    if is_cut {
        y += 27;
        area.draw(&Text::new(format!("cut at {:.0}%", 100.0 * HIGHEST), (40, y - 8), small))?;
    }
    Ok(())
}
