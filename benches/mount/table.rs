//! The lines of the result, and how they are printed.

use std::fmt;
use std::time::Duration;

/// What a line must reach.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    fn is_met(self, found: f64) -> bool {
        match self {
            Self::AtMost(most) => found <= most,
            Self::AtLeast(least) => found >= least,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "<= {most}"),
            Self::AtLeast(least) => write!(f, ">= {least}"),
        }
    }
}

/// One line.
#[derive(Debug, Clone)]
pub struct Line {
    pub measure: String,
    pub against: String,
    pub found: f64,
    /// What `found` and the target are in; nothing for a ratio.
    pub unit: &'static str,
    pub target: Target,
    /// Absolute figures.
    pub details: String,
}

/// All lines, and remarks that stand below them.
#[derive(Debug, Default)]
pub struct Table {
    lines: Vec<Line>,
    remarks: Vec<String>,
}

impl Table {
    pub fn add(&mut self, line: Line) {
        // What follows may take minutes.
        eprintln!("  {}: {:.3}{} ({})", line.measure, line.found, line.unit, line.details);
        self.lines.push(line);
    }

    pub fn remark(&mut self, text: impl Into<String>) {
        self.remarks.push(text.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["measure", "against", "found", "target", "", "absolute"].map(String::from);
        let rows = self.lines.iter().map(|line| {
            let verdict = if line.target.is_met(line.found) { "ok" } else { "SHORT" };
            [
                line.measure.clone(),
                line.against.clone(),
                format!("{:.3}{}", line.found, line.unit),
                format!("{}{}", line.target, line.unit),
                verdict.into(),
                line.details.clone(),
            ]
        });
        let rows: Vec<[String; 6]> = std::iter::once(head).chain(rows).collect();
        let widths: [usize; 6] =
            std::array::from_fn(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0));
        for row in &rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        self.remarks.iter().try_for_each(|remark| writeln!(f, "{remark}"))
    }
}

/// Milliseconds, for a line's details.
pub fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

/// The middle one of some figures; the mean of the middle two of an even number.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => figures[middle],
        _ => (figures[middle - 1] + figures[middle]) / 2.0,
    }
}
