//! Line charts as SVG on a white background.

use plotters::prelude::*;

use super::Result;

/// One panel: lines over common axes, which begin at 0.
pub struct Chart<'a> {
    pub x_name: &'a str,
    pub y_name: &'a str,
    /// The ends of the axes.
    pub x_end: f64,
    pub y_end: f64,
    /// The corner of the legend.
    pub legend: SeriesLabelPosition,
    pub lines: Vec<Line<'a>>,
}

pub struct Line<'a> {
    pub name: &'a str,
    pub points: Vec<(f64, f64)>,
}

const COLORS: [RGBColor; 3] = [RGBColor(31, 119, 180), RGBColor(214, 96, 77), RGBColor(77, 146, 33)];

/// Draws the charts one below the other, each `height` pixels high.
pub fn svg(charts: &[Chart], height: u32) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (640, height * charts.len() as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        for (area, chart) in root.split_evenly((charts.len(), 1)).iter().zip(charts) {
            draw(area, chart)?;
        }
        root.present()?;
    }
    Ok(svg)
}

fn draw(area: &DrawingArea<SVGBackend, plotters::coord::Shift>, chart: &Chart) -> Result<()> {
    let mut context = ChartBuilder::on(area)
        .margin(16)
        // Room for half of the last label.
        .margin_right(32)
        .x_label_area_size(40)
        .y_label_area_size(48)
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
        context
            .draw_series(LineSeries::new(line.points.iter().copied(), color.stroke_width(2)))?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    context
        .configure_series_labels()
        .position(chart.legend.clone())
        .label_font(("sans-serif", 16))
        .background_style(WHITE)
        .draw()?;
    Ok(())
}
