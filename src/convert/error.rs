//! What can be wrong with an input, said so that its owner can act on it.

use std::fmt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::write::WriteError;

/// Why an input or a conversion was refused.
#[derive(Debug, Error)]
pub enum ConvertError {
    /// The operating system refused something.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        path: PathBuf,
        action: &'static str,
        source: std::io::Error,
    },
    /// A file is not what it should be, at a named place in it.
    #[error("{}: {place}: {fault}", path.display())]
    Input {
        path: PathBuf,
        place: String,
        fault: String,
    },
    /// A value of the count matrix is not a count.
    #[error(transparent)]
    Count(#[from] Box<BadCount>),
    /// The dataset could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Inputs do not fit together, or not with the options.
    #[error("{0}")]
    Plan(String),
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// A value that the format cannot hold as a count, and where it stands.
#[derive(Debug)]
pub struct BadCount {
    /// The input.
    pub path: PathBuf,
    /// The matrix within it, such as `X` or `layers/counts`.
    pub matrix: String,
    /// The cell's row in the input.
    pub cell: u64,
    /// The cell's name, where it could be read.
    pub cell_name: Option<String>,
    /// The gene's column in the input.
    pub gene: u64,
    /// The gene's name.
    pub gene_name: Option<String>,
    /// The value as it is stored.
    pub value: String,
    /// What is wrong with it.
    pub why: CountFault,
    /// Another place where counts may be.
    pub hint: Option<String>,
}

/// What is wrong with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountFault {
    /// It has a fractional part.
    Fraction,
    /// It is below zero.
    Negative,
    /// It is NaN or infinite.
    NotFinite,
    /// It is above 2^31 - 1 (format, "Limits"), by itself or as the sum of the duplicates of one entry.
    TooLarge,
}

impl fmt::Display for CountFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fraction => "not a whole number",
            Self::Negative => "negative",
            Self::NotFinite => "not a number",
            Self::TooLarge => "above 2147483647, the largest count the format holds",
        })
    }
}

impl fmt::Display for BadCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: cell {}", self.path.display(), self.matrix, self.cell)?;
        if let Some(name) = &self.cell_name {
            write!(f, " ({name})")?;
        }
        write!(f, ", gene {}", self.gene)?;
        if let Some(name) = &self.gene_name {
            write!(f, " ({name})")?;
        }
        write!(f, ": {} is {}", self.value, self.why)?;
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for BadCount {}

impl From<BadCount> for ConvertError {
    fn from(bad: BadCount) -> Self {
        Self::Count(Box::new(bad))
    }
}

impl ConvertError {
    /// An [`ConvertError::Io`], for `map_err`.
    pub fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Io { path, action, source }
    }

    /// An [`ConvertError::Input`].
    pub fn input(path: &Path, place: impl Into<String>, fault: impl Into<String>) -> Self {
        Self::Input {
            path: path.to_path_buf(),
            place: place.into(),
            fault: fault.into(),
        }
    }
}

/// What the functions of this module return.
pub type Result<T> = std::result::Result<T, ConvertError>;
