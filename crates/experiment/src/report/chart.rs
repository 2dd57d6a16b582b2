//! Pictures, as SVG inside the page.
//!
//! Colours are those of light paper; the page's style replaces lines, letters and the document's colour by name of
//! their colour, so that one picture serves light and dark.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::text;

/// Letters. The style knows it by this value, as it does the next two.
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Axes and the lines of the grid.
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
/// A document's figures.
const QUOTED: RGBColor = RGBColor(0xaa, 0xaa, 0xaa);
/// Measured figures, in the order of columns. They are seen on white and on black, and told apart by those who see few colours.
const MEASURED: [RGBColor; 6] = [
    RGBColor(0x1f, 0x83, 0xc6),
    RGBColor(0xe0, 0x7b, 0x1a),
    RGBColor(0x2a, 0x9d, 0x74),
    RGBColor(0xb8, 0x4b, 0xa8),
    RGBColor(0xc9, 0xa2, 0x0c),
    RGBColor(0x6c, 0x6f, 0xd8),
];
/// As many shades of a document's.
const QUOTED_MORE: [RGBColor; 3] = [QUOTED, RGBColor(0x80, 0x80, 0x80), RGBColor(0xc8, 0xc8, 0xc8)];

const FONT: &str = "sans-serif";
const WIDTH: u32 = 860;

/// A name, and its colour.
pub(crate) type Legend = Vec<(String, String)>;

/// A picture and what its colours mean.
pub(crate) struct Chart {
    /// What it shows.
    pub(crate) title: String,
    /// Its colours.
    pub(crate) legend: Legend,
    /// The picture.
    pub(crate) svg: String,
}

/// A line of a picture or a colour of its bars.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ChartLine {
    /// What it is.
    pub(crate) name: String,
    /// Whether a document says so.
    pub(crate) is_quoted: bool,
    /// Where it is at each place; bars have one for each row, or none.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Bars: a group for each row, a colour for each line; points are (row, value).
pub(crate) fn bars(title: &str, rows: &[String], lines: &[ChartLine]) -> Result<Chart> {
    const BAR: i32 = 15;
    const GAP: i32 = 16;
    const LEFT: i32 = 250;
    let most = lines.iter().flat_map(|it| &it.points).map(|it| it.1).fold(0.0, f64::max).max(1e-9);
    let room = f64::from(WIDTH as i32 - LEFT - 110);
    let at = |line: &ChartLine, row: usize| {
        line.points.iter().find(|it| it.0 as usize == row).map(|it| it.1)
    };
    let count = |row| lines.iter().filter(|line| at(line, row).is_some()).count() as i32;
    let height: i32 = (0..rows.len()).map(|row| count(row) * BAR + GAP).sum::<i32>() + 8;
    let svg = draw(height as u32, |root| {
        let name = (FONT, 14).into_font().color(&INK);
        let right = name.pos(Pos::new(HPos::Right, VPos::Center));
        let left = (FONT, 13).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
        root.draw(&PathElement::new([(LEFT, 0), (LEFT, height)], GRID))?;
        let mut top = 8;
        for (row, title) in rows.iter().enumerate() {
            let middle = top + count(row) * BAR / 2;
            root.draw(&Text::new(title.clone(), (LEFT - 10, middle), right.clone()))?;
            for (line, color) in lines.iter().zip(colors(lines)) {
                let Some(value) = at(line, row) else { continue };
                let end = LEFT + ((value / most * room) as i32).max(1);
                let shape = [(LEFT, top + 1), (end, top + BAR - 1)];
                root.draw(&Rectangle::new(shape, color.filled()))?;
                let place = (end + 6, top + BAR / 2);
                root.draw(&Text::new(text::number(value), place, left.clone()))?;
                top += BAR;
            }
            top += GAP;
        }
        Ok(())
    })?;
    Ok(Chart { title: title.to_owned(), legend: legend(lines), svg })
}

/// How an axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From zero.
    Even,
    /// In powers of ten.
    Tenfold,
}

/// What stands beside an axis, and how it counts.
pub(crate) type Axis<'a> = (&'a str, Scale);

/// Lines over a number.
pub(crate) fn lines(
    title: &str,
    across: Axis<'_>,
    up: Axis<'_>,
    lines: &[ChartLine],
) -> Result<Chart> {
    let points = || lines.iter().flat_map(|it| it.points.iter().copied());
    let (xs, ys) = (range(across.1, points().map(|it| it.0)), range(up.1, points().map(|it| it.1)));
    let svg = draw(300, |root| {
        // Powers of ten are drawn as their logarithms: one kind of axis serves both.
        let place = |scale, value: f64| {
            if scale == Scale::Tenfold { value.max(1e-9).log10() } else { value }
        };
        let mut chart = ChartBuilder::on(root)
            .margin(10)
            .margin_right(36)
            .x_label_area_size(42)
            .y_label_area_size(76)
            .build_cartesian_2d(xs.0..xs.1, ys.0..ys.1)?;
        let label = |scale| {
            move |value: &f64| match scale {
                Scale::Even => text::tick(*value),
                Scale::Tenfold => text::tick(10f64.powf(*value)),
            }
        };
        let count = |scale, (low, high): (f64, f64)| match scale {
            Scale::Even => 8,
            Scale::Tenfold => (high - low).round() as usize + 1,
        };
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .label_style((FONT, 13).into_font().color(&INK))
            .x_labels(count(across.1, xs))
            .y_labels(count(up.1, ys).min(7))
            .x_label_formatter(&label(across.1))
            .y_label_formatter(&label(up.1))
            .x_desc(across.0)
            .y_desc(up.0)
            .draw()?;
        for (line, color) in lines.iter().zip(colors(lines)) {
            let points = line.points.iter().map(|(x, y)| (place(across.1, *x), place(up.1, *y)));
            chart.draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?;
            if line.points.len() <= 20 {
                chart.draw_series(points.map(|at| Circle::new(at, 3, color.filled())))?;
            }
        }
        Ok(())
    })?;
    Ok(Chart { title: title.to_owned(), legend: legend(lines), svg })
}

/// The ends of an axis on which all of these can be seen.
fn range(scale: Scale, values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let (low, high) = values
        .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), it| (low.min(it), high.max(it)));
    match scale {
        Scale::Even => (0.0, high.max(1e-9) * 1.05),
        Scale::Tenfold => {
            let low = if low.is_finite() { low.max(1e-3).log10().floor() } else { 0.0 };
            (low, high.max(1e-3).log10().ceil().max(low + 1.0))
        }
    }
}

fn colors(lines: &[ChartLine]) -> Vec<RGBColor> {
    let (mut measured, mut quoted) = (MEASURED.iter().cycle(), QUOTED_MORE.iter().cycle());
    let next = |it: &ChartLine| if it.is_quoted { quoted.next() } else { measured.next() };
    lines.iter().map(next).map(|it| it.copied().unwrap_or(INK)).collect()
}

fn legend(lines: &[ChartLine]) -> Legend {
    let css = |RGBColor(r, g, b): RGBColor| format!("#{r:02X}{g:02X}{b:02X}");
    lines.iter().zip(colors(lines)).map(|(line, color)| (line.name.clone(), css(color))).collect()
}

type Paper<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(height: u32, paint: impl FnOnce(&Paper<'_>) -> Drawn) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let broken = |error: &dyn std::fmt::Display| anyhow!("drawing a chart: {error}");
        paint(&root).map_err(|error| broken(&error))?;
        root.present().map_err(|error| broken(&error))?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, is_quoted: bool, points: &[(f64, f64)]) -> ChartLine {
        ChartLine { name: name.to_owned(), is_quoted, points: points.to_vec() }
    }

    #[test]
    fn bars_have_their_figures() {
        let rows = ["one".to_owned(), "two".to_owned()];
        let all = [
            line("here", false, &[(0.0, 1500.0), (1.0, 20.0)]),
            line("there", true, &[(0.0, 3000.0)]),
        ];
        let chart = bars("Rates", &rows, &all).unwrap();
        for text in ["one", "two", "1,500", "20.0", "3,000"] {
            assert!(chart.svg.contains(text), "{text}: {}", chart.svg);
        }
        assert_eq!(chart.svg.matches("<rect").count(), 3);
        assert_eq!(chart.legend[1], ("there".to_owned(), "#AAAAAA".to_owned()));
    }

    #[test]
    fn axes_hold_all_points() {
        let values = [7.0, 12_000.0];
        assert_eq!(range(Scale::Tenfold, values.into_iter()), (0.0, 5.0));
        assert_eq!(range(Scale::Even, values.into_iter()), (0.0, 12_600.0));
        assert_eq!(range(Scale::Tenfold, std::iter::empty()), (0.0, 1.0));
    }

    #[test]
    fn lines_of_nothing_can_be_drawn() {
        let chart =
            lines("None", ("x", Scale::Even), ("y", Scale::Tenfold), &[line("a", false, &[])]);
        assert!(chart.unwrap().svg.starts_with("<svg"));
    }
}
