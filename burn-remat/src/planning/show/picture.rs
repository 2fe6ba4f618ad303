//! Two pictures of a planned step: memory over its operations, and overhead against budget.

use std::ops::Range;

use burn_remat_plan::Phase;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::others::Others;
use crate::planning::schedule::Schedule;
use crate::planning::stages::Staged;

const FONT: &str = "sans-serif";
/// Colours that the colour-blind can tell apart (Okabe & Ito).
const STORE_ALL: RGBColor = RGBColor(150, 150, 150);
const PLANNED: RGBColor = RGBColor(0, 114, 178);
const MEASURED: RGBColor = RGBColor(0, 0, 0);
const BUDGET: RGBColor = RGBColor(213, 94, 0);
/// Backgrounds of forward, backward and update.
const PHASES: [RGBColor; 3] = [RGBColor(232, 243, 250), RGBColor(253, 243, 224), RGBColor(240, 240, 240)];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<'a> = Result<(), Box<dyn std::error::Error + 'a>>;

fn unit_of(bytes: u64) -> (f64, &'static str) {
    let units = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    units.into_iter().find(|&(size, _)| bytes >= 2 * size).map_or((1.0, "bytes"), |(size, name)| (size as f64, name))
}

fn svg(size: (u32, u32), draw: impl for<'a> FnOnce(&Area<'a>) -> Drawn<'a>) -> Result<String, String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(|error| error.to_string())?;
        draw(&root).map_err(|error| error.to_string())?;
        root.present().map_err(|error| error.to_string())?;
    }
    Ok(text)
}

/// Draws a legend line by line at the top left of `area`.
fn legend<'a>(area: &Area<'a>, lines: &[(&str, RGBColor)], at: (i32, i32), size: u32) -> Drawn<'a> {
    for (index, &(text, color)) in lines.iter().enumerate() {
        let y = at.1 + index as i32 * (size as i32 + 8);
        area.draw(&Rectangle::new([(at.0, y), (at.0 + 22, y + size as i32 - 2)], color.filled()))?;
        area.draw(&Text::new(text.to_owned(), (at.0 + 30, y - 2), (FONT, size)))?;
    }
    Ok(())
}

/// Memory over the operations of a step: without evictions, as planned, as measured (if it was), and the budget.
pub(super) fn memory(
    schedule: &Schedule,
    measured: &[u64],
    budget: Option<u64>,
    size: (u32, u32),
) -> Result<String, String> {
    svg(size, |root| draw_memory(root, schedule, measured, budget, size))
}

fn draw_memory<'a>(
    root: &Area<'a>,
    schedule: &Schedule,
    measured: &[u64],
    budget: Option<u64>,
    size: (u32, u32),
) -> Drawn<'a> {
    let store_all = &schedule.lowered.store_all;
    let most = store_all.iter().chain(&schedule.foreseen.during).max().copied().unwrap_or(1).max(budget.unwrap_or(0));
    let (unit, unit_name) = unit_of(most);
    let count = store_all.len();
    let text = (size.1 / 34).max(11);
    let (plot, side) = root.split_horizontally(size.0 as i32 - 13 * text as i32);
    let top = most as f64 / unit * 1.06;
    let stages = schedule.trace.passages();
    let mut chart = ChartBuilder::on(&plot)
        .caption("memory over one training step", (FONT, text + 6))
        .margin(text / 2)
        .x_label_area_size(text * 5 / 2 + if stages.is_empty() { 0 } else { text + 10 })
        .y_label_area_size(text * 4)
        .build_cartesian_2d(0.0..count as f64, 0.0..top)?;
    for (corners, color) in phases(schedule, top) {
        chart.draw_series([Rectangle::new(corners, color.filled())])?;
    }
    chart
        .configure_mesh()
        .x_desc("operation")
        .y_desc(unit_name)
        .axis_desc_style((FONT, text))
        .label_style((FONT, text - 1))
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(BLACK.mix(0.08))
        .x_labels(8)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| if top < 10.0 { format!("{y:.1}") } else { format!("{y:.0}") })
        .draw()?;
    let line = |bytes: &[u64]| -> Vec<(f64, f64)> {
        bytes.iter().enumerate().map(|(at, bytes)| (at as f64 + 0.5, *bytes as f64 / unit)).collect()
    };
    chart.draw_series(AreaSeries::new(line(store_all), 0.0, STORE_ALL.mix(0.35)).border_style(STORE_ALL))?;
    chart.draw_series(LineSeries::new(line(&schedule.foreseen.during), PLANNED.stroke_width(2)))?;
    let mut lines = vec![("store-all", STORE_ALL), ("planned (at most)", PLANNED)];
    if !measured.is_empty() {
        chart.draw_series(LineSeries::new(line(measured), MEASURED.stroke_width(1)))?;
        lines.push(("measured", MEASURED));
    }
    if let Some(budget) = budget {
        let y = budget as f64 / unit;
        chart.draw_series(LineSeries::new([(0.0, y), (count as f64, y)], BUDGET.stroke_width(2)))?;
        lines.push(("budget", BUDGET));
    }
    let pixel = |x: u32| chart.plotting_area().map_coordinate(&(f64::from(x), 0.0));
    let spans = stages.iter().map(|(range, name)| (pixel(range.start).0..pixel(range.end).0, &**name)).collect();
    name_stages(&plot, spans, pixel(0), text)?;
    lines.extend([("forward", PHASES[0]), ("backward", PHASES[1]), ("update", PHASES[2])]);
    legend(&side, &lines, (4, 2 * text as i32 + 10), text)
}

/// The operations of each op, up to `top`, in the colour of its phase.
fn phases(schedule: &Schedule, top: f64) -> impl Iterator<Item = ([(f64, f64); 2], RGBColor)> {
    let ops = schedule.lowered.graph.ops().iter().zip(&schedule.lowered.ranges);
    ops.filter_map(move |(op, range)| {
        let color = match op.phase? {
            Phase::Forward => PHASES[0],
            Phase::Backward => PHASES[1],
            Phase::Update => PHASES[2],
        };
        Some(([(f64::from(range.start), 0.0), (f64::from(range.end), top)], color))
    })
}

/// Draws, below the numbers of the x axis, a line for each passage through a stage, and its name where there is room. The
/// axis begins at `origin`.
fn name_stages<'a>(plot: &Area<'a>, mut spans: Vec<(Range<i32>, &str)>, origin: (i32, i32), text: u32) -> Drawn<'a> {
    let size = text - 1;
    let y = origin.1 + text as i32 + 10;
    for (span, _) in &spans {
        let end = (span.end - 1).max(span.start + 1);
        plot.draw(&Rectangle::new([(span.start, y), (end, y + 2)], STORE_ALL.filled()))?;
    }
    // The widest first.
    spans.sort_by_key(|(span, _)| (span.start - span.end, span.start));
    let mut taken: Vec<Range<i32>> = Vec::new();
    for (span, name) in spans {
        // A letter is about six tenths as wide as it is high.
        let width = name.chars().count() as i32 * size as i32 * 6 / 10;
        let start = ((span.start + span.end - width) / 2).max(origin.0);
        if taken.iter().all(|other| start + width + 8 < other.start || other.end + 8 < start) {
            taken.push(start..start + width);
            plot.draw(&Text::new(name.to_owned(), (start, y + 4), (FONT, size)))?;
        }
    }
    Ok(())
}

/// The share of time that each budget adds.
pub(crate) struct Curve {
    /// Budgets in bytes and shares, in ascending order of budgets.
    pub points: Vec<(u64, f64)>,
    /// Below this no plan fits.
    pub least: u64,
    /// Bytes held without evictions.
    pub most: u64,
    /// The point that is marked, and its name.
    pub here: Option<(u64, f64, &'static str)>,
}

impl Curve {
    /// Of one step; the plan in force is marked.
    fn of(schedule: &Schedule, others: &Others) -> Self {
        let mut points: Vec<(u64, f64)> = vec![(schedule.peak, schedule.overhead())];
        points.extend(others.plans.iter().map(|other| (other.budget, other.schedule.overhead())));
        points.sort_by_key(|point| point.0);
        // A plan for a small budget also fits a larger one.
        let mut best = f64::INFINITY;
        for point in &mut points {
            best = best.min(point.1);
            point.1 = best;
        }
        let here = Some((schedule.peak, schedule.overhead(), "this plan"));
        Self { points, least: others.least, most: others.most, here }
    }
}

/// Overhead against budget, for one step.
pub(super) fn overhead(schedule: &Schedule, others: &Others, size: (u32, u32)) -> Result<String, String> {
    curve(&Curve::of(schedule, others), size)
}

/// Overhead against budget.
pub(crate) fn curve(curve: &Curve, size: (u32, u32)) -> Result<String, String> {
    svg(size, |root| draw_curve(root, curve, size))
}

fn draw_curve<'a>(root: &Area<'a>, curve: &Curve, size: (u32, u32)) -> Drawn<'a> {
    let Curve { points, least, most, here } = curve;
    let (unit, unit_name) = unit_of(*most);
    let text = (size.1 / 34).max(11);
    let line: Vec<(f64, f64)> = points.iter().map(|&(bytes, share)| (bytes as f64 / unit, 100.0 * share)).collect();
    let top = line.iter().map(|point| point.1).fold(1.0, f64::max) * 1.1;
    let (least, most) = (*least as f64 / unit, *most as f64 / unit);
    let left = (least - (most - least) * 0.1).max(0.0);
    let mut chart = ChartBuilder::on(root)
        .caption("what a smaller budget costs", (FONT, text + 6))
        .margin(text / 2)
        .margin_right(2 * text)
        .x_label_area_size(text * 5 / 2)
        .y_label_area_size(text * 4)
        .build_cartesian_2d(left..most * 1.02, 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc(format!("budget ({unit_name})"))
        .y_desc("time added (%)")
        .axis_desc_style((FONT, text))
        .label_style((FONT, text - 1))
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(BLACK.mix(0.08))
        .x_labels(8)
        .x_label_formatter(&|x| if most < 10.0 { format!("{x:.2}") } else { format!("{x:.0}") })
        .y_label_formatter(&|y| if top < 10.0 { format!("{y:.1}") } else { format!("{y:.0}") })
        .draw()?;
    let grey = RGBColor(120, 120, 120);
    chart.draw_series([Rectangle::new([(left, 0.0), (least, top)], grey.mix(0.25).filled())])?;
    chart.draw_series(LineSeries::new(line.iter().copied(), PLANNED.stroke_width(2)))?;
    chart.draw_series(line.iter().map(|&at| Circle::new(at, 3, PLANNED.filled())))?;
    let mut lines = vec![("planned", PLANNED), ("no plan fits", RGBColor(205, 205, 205))];
    if let &Some((bytes, share, name)) = here {
        chart.draw_series([Circle::new((bytes as f64 / unit, 100.0 * share), 6, BUDGET.stroke_width(3))])?;
        lines.insert(1, (name, BUDGET));
    }
    legend(root, &lines, (size.0 as i32 - 11 * text as i32, 3 * text as i32), text)
}
