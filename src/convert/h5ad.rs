//! AnnData files (`.h5ad`) of anndata 0.6 and later.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, StringArray};

use super::error::Result;
use super::frame::Frame;
use super::genes::{GeneColumn, Genes, dictionary};
use super::hdf5::{H5File, Node};
use super::matrix::Matrix;
use super::source::{MatrixError, Reading, RowStream, Scan, Source, SourceColumn, SourceKind};

/// Which matrix of an AnnData file to read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum MatrixChoice {
    /// `X`
    #[default]
    X,
    /// A layer.
    Layer(String),
    /// `raw.X`, with the genes of `raw.var`.
    Raw,
}

impl fmt::Display for MatrixChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::X => f.write_str("X"),
            Self::Layer(layer) => write!(f, "layers/{layer}"),
            Self::Raw => f.write_str("raw/X"),
        }
    }
}

/// An AnnData file.
pub struct H5ad {
    file: Arc<H5File>,
    matrix_name: String,
    matrix: Matrix,
    obs: Frame,
    genes: Genes,
    hint: Option<String>,
    notes: Vec<String>,
}

impl H5ad {
    /// Opens an AnnData file; counts are those of `choice`.
    ///
    /// # Errors
    /// When the file is not one, is damaged, or lacks the matrix; the message then says what there is.
    pub fn open(path: &Path, choice: &MatrixChoice) -> Result<Self> {
        let file = Arc::new(H5File::open(path)?);
        let matrix_name = match choice {
            // Before 0.7, raw stood beside X.
            MatrixChoice::Raw if !file.is_group("raw")? && !matches!(file.node("raw.X")?, Node::Absent) => {
                "raw.X".into()
            }
            _ => choice.to_string(),
        };
        let var_name = match matrix_name.as_str() {
            "raw.X" => "raw.var",
            "raw/X" => "raw/var",
            _ => "var",
        };
        let others = others(&file, &matrix_name)?;
        let matrix = open_matrix(&file, &matrix_name, &others)?;
        let obs = Frame::open(&file, "obs")?;
        if obs.rows() != matrix.n_cells() {
            let fault = format!("has {} cells, expected {} as obs has", matrix.n_cells(), obs.rows());
            return Err(file.fault(&matrix_name, fault));
        }
        let var = Frame::open(&file, var_name)?;
        if var.rows() != u64::from(matrix.n_genes()) {
            let fault = format!(
                "has {} genes, expected {} as {var_name} has",
                matrix.n_genes(),
                var.rows()
            );
            return Err(file.fault(&matrix_name, fault));
        }
        let mut notes = Vec::new();
        let genes = read_genes(&var, &mut notes)?;
        notes.extend(obs.notes().into_iter().chain(var.notes()));
        notes.extend(left_behind(&file, &others)?);
        Ok(Self {
            file,
            matrix_name,
            matrix,
            obs,
            genes,
            hint: hint(&others),
            notes,
        })
    }
}

/// The other matrices of the file, as the options that choose them.
fn others(file: &H5File, chosen: &str) -> Result<Vec<String>> {
    let mut others = Vec::new();
    if file.is_group("layers")? {
        for layer in file.members("layers")? {
            if chosen != format!("layers/{layer}") {
                others.push(format!("--layer {layer}"));
            }
        }
    }
    let has_raw = file.is_group("raw")? || !matches!(file.node("raw.X")?, Node::Absent);
    if has_raw && !chosen.starts_with("raw") {
        others.push("--use-raw".into());
    }
    Ok(others)
}

/// What the file holds that a dataset has no place for.
fn left_behind(file: &H5File, others: &[String]) -> Result<Option<String>> {
    let mut left = Vec::new();
    for group in ["obsm", "obsp", "varm", "varp", "uns"] {
        if file.is_group(group)? {
            let members = file.members(group)?;
            if !members.is_empty() {
                left.push(format!("{group} ({})", members.join(", ")));
            }
        }
    }
    let others = others.iter().map(|other| format!("the matrix that {other} chooses"));
    left.extend(others);
    Ok(match left.is_empty() {
        true => None,
        false => Some(format!("not part of a dataset: {}", left.join(", "))),
    })
}

fn hint(others: &[String]) -> Option<String> {
    Some(match others {
        [] => "only raw counts can be stored, and the file has no other matrix".into(),
        others => format!(
            "only raw counts can be stored; the file has other matrices: try {}",
            others.join(" or ")
        ),
    })
}

fn open_matrix(file: &H5File, name: &str, others: &[String]) -> Result<Matrix> {
    match file.node(name)? {
        Node::Dataset(data) => Matrix::dense(*data),
        Node::Absent => {
            let what = match others {
                [] => "is missing, and there is no other matrix".to_owned(),
                others => format!("is missing; the file has other matrices: try {}", others.join(" or ")),
            };
            Err(file.fault(name, what))
        }
        Node::Group => {
            let attributes = file.attributes(name)?;
            let format = attributes.text("encoding-type").or(attributes.text("h5sparse_format"));
            let shape = attributes.integers("shape").or(attributes.integers("h5sparse_shape"));
            let Some(shape) = shape else {
                return Err(file.fault(name, "has no attribute that tells its shape"));
            };
            let &[cells, genes] = shape.as_slice() else {
                return Err(file.fault(name, format!("has the shape {shape:?}, expected cells by genes")));
            };
            let (Ok(cells), Ok(genes)) = (u64::try_from(cells), u32::try_from(genes)) else {
                return Err(file.fault(name, format!("has the shape {shape:?}")));
            };
            let part = |part: &str| file.dataset(&format!("{name}/{part}"));
            let (data, indices, indptr) = (part("data")?, part("indices")?, part("indptr")?);
            match format {
                Some("csr_matrix" | "csr") => Matrix::rows(data, indices, indptr, cells, genes),
                Some("csc_matrix" | "csc") => Matrix::columns(data, indices, indptr, cells, genes),
                other => Err(file.fault(
                    name,
                    format!(
                        "has the encoding {:?}, expected csr_matrix, csc_matrix or an array",
                        other.unwrap_or("")
                    ),
                )),
            }
        }
    }
}

fn read_genes(var: &Frame, notes: &mut Vec<String>) -> Result<Genes> {
    let mut columns = Vec::new();
    for (at, column) in var.columns().iter().enumerate() {
        let values = match &column.kind {
            SourceKind::Unsupported(what) => {
                notes.push(format!(
                    "the gene table's column {:?} holds {what} and is left out",
                    column.name
                ));
                continue;
            }
            SourceKind::Category(labels) => {
                let codes = var.read(at, 0..var.rows())?;
                match codes.as_any().downcast_ref::<Int32Array>() {
                    Some(codes) => dictionary(codes, labels),
                    None => codes,
                }
            }
            _ => var.read(at, 0..var.rows())?,
        };
        columns.push(GeneColumn {
            name: column.name.clone(),
            values,
        });
    }
    Ok(Genes {
        names: Arc::new(var.whole_index()?),
        index_name: var.index_name().map(str::to_owned),
        columns,
    })
}

impl Source for H5ad {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn format(&self) -> &'static str {
        "h5ad"
    }

    fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    fn n_cells(&self) -> u64 {
        self.matrix.n_cells()
    }

    fn entries(&self) -> Option<u64> {
        self.matrix.entries()
    }

    fn genes(&self) -> &Genes {
        &self.genes
    }

    fn columns(&self) -> &[SourceColumn] {
        self.obs.columns()
    }

    fn column(&self, column: usize, cells: Range<u64>) -> Result<ArrayRef> {
        self.obs.read(column, cells)
    }

    fn cell_names(&self, cells: Range<u64>) -> Result<StringArray> {
        self.obs.index(cells)
    }

    fn scan(&self, reading: &Reading) -> Result<Scan> {
        let named = |error: MatrixError| error.named(self, &self.genes, &self.matrix_name, self.hint.clone());
        self.matrix.scan(reading).map_err(named)
    }

    fn rows<'a>(&'a self, reading: &Reading) -> Result<RowStream<'a>> {
        let named = |error: MatrixError| error.named(self, &self.genes, &self.matrix_name, self.hint.clone());
        let blocks = self.matrix.blocks(reading).map_err(named)?;
        Ok(Box::new(blocks.map(move |block| block.map_err(named))))
    }

    fn spilled_bytes(&self) -> u64 {
        self.matrix.spilled_bytes()
    }

    fn gene_tables(&mut self) -> Vec<&mut Genes> {
        vec![&mut self.genes]
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
