//! Line charts as SVG on a white background.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::Result;

/// One panel: lines over common axes, which begin at 0.
pub struct Chart<'a> {
    pub title: &'a str,
    /// A line below the title, such as the name of the model.
    pub about: &'a str,
    pub x_name: &'a str,
    pub y_name: &'a str,
    /// The ends of the axes.
    pub x_end: f64,
    pub y_end: f64,
    /// Several lines get a legend above the axes.
    pub lines: Vec<Line<'a>>,
}

pub struct Line<'a> {
    pub name: &'a str,
    pub points: Vec<(f64, f64)>,
}

const COLORS: [RGBColor; 3] = [RGBColor(31, 119, 180), RGBColor(214, 96, 77), RGBColor(77, 146, 33)];
const GRAY: RGBColor = RGBColor(87, 96, 106);
/// Pixels: the width of a picture, its margin, the left end of the axes, the height of a line of the legend.
const WIDTH: u32 = 640;
const MARGIN: i32 = 16;
const LEFT: i32 = 64;
const LINE: i32 = 20;

/// Draws the charts one below the other, each `height` pixels high.
pub fn svg(charts: &[Chart], height: u32) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height * charts.len() as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        for (area, chart) in root.split_evenly((charts.len(), 1)).iter().zip(charts) {
            draw(area, chart)?;
        }
        root.present()?;
    }
    Ok(svg)
}

fn draw(area: &DrawingArea<SVGBackend, Shift>, chart: &Chart) -> Result<()> {
    let named = if chart.lines.len() > 1 { chart.lines.as_slice() } else { &[] };
    let (head, body) = area.split_vertically(MARGIN + 48 + LINE * named.len() as i32);
    let text = |text: &str, x: i32, y: i32, font: FontDesc, color: RGBColor| {
        head.draw(&Text::new(text.to_string(), (x, y), font.color(&color)))
    };
    text(chart.title, LEFT, MARGIN, ("sans-serif", 20).into_font().style(FontStyle::Bold), BLACK)?;
    text(chart.about, LEFT, MARGIN + 22, ("sans-serif", 15).into_font(), GRAY)?;
    for ((line, color), y) in named.iter().zip(COLORS).zip((MARGIN + 46..).step_by(LINE as usize)) {
        head.draw(&PathElement::new([(LEFT, y + 6), (LEFT + 18, y + 6)], color.stroke_width(2)))?;
        text(line.name, LEFT + 26, y, ("sans-serif", 16).into_font(), BLACK)?;
    }
    let mut context = ChartBuilder::on(&body)
        .margin(MARGIN)
        .margin_top(8)
        // Room for half of the last label.
        .margin_right(32)
        .x_label_area_size(40)
        .y_label_area_size(LEFT - MARGIN)
        .build_cartesian_2d(0f64..chart.x_end, 0f64..chart.y_end)?;
    context
        .configure_mesh()
        .x_desc(chart.x_name)
        .y_desc(chart.y_name)
        .label_style(("sans-serif", 16))
        .max_light_lines(0)
        .x_labels(11)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .draw()?;
    for (line, color) in chart.lines.iter().zip(COLORS) {
        context.draw_series(LineSeries::new(line.points.iter().copied(), color.stroke_width(2)))?;
    }
    Ok(())
}
