//! MatrixMarket folders: Cell Ranger's old and new layout, STARsolo's, alevin's where it is plain text.
//!
//! A folder holds a matrix, a list of genes and a list of barcodes, each compressed or not. The matrix is genes by
//! cells as a rule and cells by genes where the lengths of the lists say so. Its entries usually come cell by cell and
//! are then read as they come; entries in any other order are regrouped.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, OnceLock};

use arrow::array::{Array, ArrayRef, StringArray, StringBuilder};
use flate2::read::MultiGzDecoder;

use super::error::{ConvertError, CountFault, Result};
use super::genes::{GeneColumn, Genes};
use super::regroup::Regroup;
use super::source::{MatrixError, Reading, RowBlock, RowStream, Scan, Source, SourceColumn};
use super::tenx_h5::{Selected, select_type};

/// Bytes of text that are decompressed ahead at a time.
const TEXT_BYTES: usize = 1 << 20;
/// Pieces of decompressed text that wait at most.
const TEXT_AHEAD: usize = 4;
/// Entries of a block of rows.
const BLOCK_ENTRIES: usize = 1 << 20;
/// Cells of a block of rows.
const BLOCK_CELLS: usize = 1 << 16;
/// Entries between two signs of progress.
const TICK_ENTRIES: u64 = 1 << 20;

/// Where matrices are in the folders of the programs that write them, below the folder that is named.
const PLACES: [&str; 6] = [
    "",
    "Gene/filtered",
    "GeneFull/filtered",
    "filtered_feature_bc_matrix",
    "outs/filtered_feature_bc_matrix",
    "alevin",
];

/// A MatrixMarket folder.
pub struct MtxFolder {
    matrix_path: PathBuf,
    bytes: u64,
    header: Header,
    /// Whether rows of the matrix are cells.
    cells_are_rows: bool,
    barcodes: StringArray,
    /// All genes of the matrix.
    genes: Genes,
    selected: Option<Selected>,
    /// Whether entries come cell by cell, once they have all been read.
    sorted: OnceLock<bool>,
    notes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    rows: u64,
    columns: u64,
    entries: u64,
}

/// The three files of a folder.
struct Files {
    matrix: PathBuf,
    genes: PathBuf,
    barcodes: PathBuf,
}

impl Files {
    /// The files of `folder`, under the names of any of the programs.
    fn find(folder: &Path) -> Result<Option<Self>> {
        let plain_or_gz = |names: &[&str]| -> Option<PathBuf> {
            let candidates = names
                .iter()
                .flat_map(|name| [folder.join(name), folder.join(format!("{name}.gz"))]);
            candidates.into_iter().find(|path| path.is_file())
        };
        if let Some(matrix) = plain_or_gz(&["matrix.mtx"]) {
            let missing = |what: &str| ConvertError::input(folder, what, "is missing beside the matrix");
            return Ok(Some(Self {
                matrix,
                genes: plain_or_gz(&["features.tsv", "genes.tsv"])
                    .ok_or_else(|| missing("features.tsv or genes.tsv"))?,
                barcodes: plain_or_gz(&["barcodes.tsv"]).ok_or_else(|| missing("barcodes.tsv"))?,
            }));
        }
        let alevin = (
            plain_or_gz(&["quants_mat.mtx"]),
            plain_or_gz(&["quants_mat_cols.txt"]),
            plain_or_gz(&["quants_mat_rows.txt"]),
        );
        Ok(match alevin {
            (Some(matrix), Some(genes), Some(barcodes)) => Some(Self {
                matrix,
                genes,
                barcodes,
            }),
            _ => None,
        })
    }

    /// The files of `path`: a folder, or the matrix in one.
    fn locate(path: &Path) -> Result<Self> {
        let folder = match path.is_file() {
            true => path.parent().unwrap_or(Path::new("")),
            false => path,
        };
        let mut found = Vec::new();
        for place in PLACES {
            if let Some(files) = Self::find(&folder.join(place))? {
                found.push(files);
            }
            // The folder itself leaves no doubt.
            if place.is_empty() && !found.is_empty() {
                break;
            }
        }
        let is_zarr = [".zgroup", "zarr.json"].iter().any(|name| path.join(name).is_file());
        match found.len() {
            0 if is_zarr => Err(ConvertError::input(
                path,
                "folder",
                "is a zarr store, which is not supported; read it with anndata and save it with write_h5ad",
            )),
            0 => Err(ConvertError::input(
                path,
                "folder",
                "has no matrix.mtx or matrix.mtx.gz (nor quants_mat.mtx, nor Gene/filtered of STARsolo)",
            )),
            1 => Ok(found.remove(0)),
            _ => {
                let folders: Vec<String> = found
                    .iter()
                    .filter_map(|files| Some(files.matrix.parent()?.display().to_string()))
                    .collect();
                let fault = format!("has several matrices, name one of {}", folders.join(", "));
                Err(ConvertError::input(path, "folder", fault))
            }
        }
    }
}

impl MtxFolder {
    /// Whether `path` is a folder, or a MatrixMarket file, that can be opened.
    pub(crate) fn is_one(path: &Path) -> bool {
        let name = path.to_string_lossy();
        path.is_dir() || name.ends_with(".mtx") || name.ends_with(".mtx.gz")
    }

    /// Opens a folder, or the matrix in one.
    ///
    /// `feature_type` chooses among the types of features, where features have types.
    ///
    /// # Errors
    /// When files are missing or do not fit each other; the message then says which.
    pub fn open(path: &Path, feature_type: &str) -> Result<Self> {
        let files = Files::locate(path)?;
        let bytes = std::fs::metadata(&files.matrix)
            .map_err(ConvertError::io(&files.matrix, "stat"))?
            .len();
        let header = Text::open(&files.matrix)?.header()?;
        let barcodes = read_barcodes(&files.barcodes)?;
        let (genes, types) = read_genes(&files.genes)?;
        let lengths = (genes.len() as u64, barcodes.len() as u64);
        let mut notes = Vec::new();
        // As many cells as genes fit either way; then alevin's name says that cells are rows.
        let name = files.matrix.file_name().unwrap_or_default().to_string_lossy();
        let is_alevin = name.starts_with("quants_mat");
        let fits = (header.rows, header.columns) == lengths;
        let cells_are_rows = if fits && !(is_alevin && lengths.0 == lengths.1) {
            false
        } else if (header.columns, header.rows) == lengths {
            notes.push("the matrix is cells by genes".into());
            true
        } else {
            let fault = format!(
                "has {} rows and {} columns, but {} has {} genes and {} has {} cells",
                header.rows,
                header.columns,
                files.genes.display(),
                lengths.0,
                files.barcodes.display(),
                lengths.1
            );
            return Err(ConvertError::input(&files.matrix, "header", fault));
        };
        let selected = select_type(&genes, &types, feature_type, &mut notes)
            .map_err(|fault| ConvertError::input(&files.genes, "third column", fault))?;
        Ok(Self {
            matrix_path: files.matrix,
            bytes,
            header,
            cells_are_rows,
            barcodes,
            genes,
            selected,
            sorted: OnceLock::new(),
            notes,
        })
    }

    fn named(&self, error: MatrixError) -> ConvertError {
        error.named(self, &self.genes, "matrix", None)
    }

    /// Calls `each` with the cell, gene and count of every entry.
    fn for_each_entry(
        &self,
        reading: &Reading,
        tell: bool,
        mut each: impl FnMut(u64, u32, u32) -> std::result::Result<(), MatrixError>,
    ) -> std::result::Result<(), MatrixError> {
        let mut entries = Entries::open(self)?;
        let mut told = 0;
        while let Some((cell, gene, count)) = entries.next()? {
            each(cell, gene, count)?;
            if entries.read - told >= TICK_ENTRIES {
                reading.tick(if tell { entries.read - told } else { 0 })?;
                told = entries.read;
            }
        }
        reading.tick(if tell { entries.read - told } else { 0 })?;
        Ok(())
    }

    /// Reads all entries for nothing but their order; a scan finds it besides.
    fn look_whether_sorted(&self, reading: &Reading) -> std::result::Result<(), MatrixError> {
        let (mut last, mut sorted) = (0, true);
        self.for_each_entry(reading, false, |cell, _, _| {
            sorted &= cell >= last;
            last = cell;
            Ok(())
        })?;
        // Whoever was first has found the same.
        let _ = self.sorted.set(sorted);
        Ok(())
    }

    fn blocks(&self, reading: &Reading) -> std::result::Result<BlockStream<'_>, MatrixError> {
        let n_cells = self.n_cells();
        if self.sorted.get().is_none() {
            self.look_whether_sorted(reading)?;
        }
        if self.sorted.get() == Some(&true) {
            return Ok(Box::new(SortedRows::new(self)?));
        }
        let mut regroup = Regroup::new(n_cells, self.header.entries, &reading.scratch)?;
        self.for_each_entry(reading, false, |cell, gene, count| Ok(regroup.push(cell, gene, count)?))?;
        Ok(Box::new(regroup.finish()))
    }
}

type BlockStream<'a> = Box<dyn Iterator<Item = std::result::Result<RowBlock, MatrixError>> + Send + 'a>;

impl Source for MtxFolder {
    fn path(&self) -> &Path {
        &self.matrix_path
    }

    fn format(&self) -> &'static str {
        "mtx"
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn n_cells(&self) -> u64 {
        self.barcodes.len() as u64
    }

    fn entries(&self) -> Option<u64> {
        Some(self.header.entries)
    }

    fn genes(&self) -> &Genes {
        self.selected.as_ref().map_or(&self.genes, |selected| &selected.genes)
    }

    fn columns(&self) -> &[SourceColumn] {
        &[]
    }

    fn column(&self, column: usize, _cells: Range<u64>) -> Result<ArrayRef> {
        Err(ConvertError::input(
            &self.matrix_path,
            "barcodes",
            format!("have no column {column}"),
        ))
    }

    fn cell_names(&self, cells: Range<u64>) -> Result<StringArray> {
        let from = (cells.start as usize).min(self.barcodes.len());
        let to = (cells.end as usize).clamp(from, self.barcodes.len());
        Ok(self.barcodes.slice(from, to - from))
    }

    fn scan(&self, reading: &Reading) -> Result<Scan> {
        let mut scan = Scan::new(self.genes.len());
        let (mut last, mut sorted) = (0, true);
        let result = self.for_each_entry(reading, true, |cell, gene, count| {
            sorted &= cell >= last;
            last = cell;
            scan.add(gene, count);
            Ok(())
        });
        result.map_err(|error| self.named(error))?;
        // Whoever was first has found the same.
        let _ = self.sorted.set(sorted);
        Ok(match &self.selected {
            Some(selected) => selected.scan(&scan),
            None => scan,
        })
    }

    fn rows<'a>(&'a self, reading: &Reading) -> Result<RowStream<'a>> {
        let blocks = self.blocks(reading).map_err(|error| self.named(error))?;
        Ok(Box::new(blocks.map(move |block| {
            let block = block.map_err(|error| self.named(error))?;
            Ok(match &self.selected {
                Some(selected) => block.select(&selected.renumber),
                None => block,
            })
        })))
    }

    fn spilled_bytes(&self) -> u64 {
        match self.sorted.get() {
            Some(false) => Regroup::spilled_bytes(self.header.entries),
            _ => 0,
        }
    }

    fn gene_tables(&mut self) -> Vec<&mut Genes> {
        let selected = self.selected.iter_mut().map(|selected| &mut selected.genes);
        selected.chain([&mut self.genes]).collect()
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}

/// Rows of entries that come cell by cell.
struct SortedRows<'a> {
    entries: Entries<'a>,
    n_cells: u64,
    /// The first cell of the next block.
    first: u64,
    /// An entry that belongs to the next block.
    pending: Option<(u64, u32, u32)>,
    done: bool,
}

impl<'a> SortedRows<'a> {
    fn new(folder: &'a MtxFolder) -> Result<Self> {
        Ok(Self {
            entries: Entries::open(folder)?,
            n_cells: folder.n_cells(),
            first: 0,
            pending: None,
            done: false,
        })
    }

    fn block(&mut self) -> std::result::Result<RowBlock, MatrixError> {
        let first = self.first;
        let (mut indptr, mut genes, mut counts) = (vec![0], Vec::new(), Vec::new());
        // The cells before the current one are complete.
        let mut current = first;
        let mut take = self.pending.take();
        if take.is_none() {
            take = self.entries.next()?;
        }
        while let Some((cell, gene, count)) = take {
            if cell < current {
                return Err(MatrixError::Other(
                    self.entries.fault("its entries do not come cell by cell any more"),
                ));
            }
            let full = cell > current && (genes.len() >= BLOCK_ENTRIES || current - first >= BLOCK_CELLS as u64);
            if full {
                self.pending = Some((cell, gene, count));
                break;
            }
            // A long run of empty cells may make a block longer, by eight bytes a cell.
            indptr.resize((cell - first) as usize + 1, genes.len());
            current = cell;
            genes.push(gene);
            counts.push(count);
            take = self.entries.next()?;
        }
        let end = if self.pending.is_some() {
            current + 1
        } else {
            self.n_cells
        };
        indptr.resize((end - first) as usize + 1, genes.len());
        self.first = end;
        RowBlock::new(first, indptr, genes, counts)
    }
}

impl Iterator for SortedRows<'_> {
    type Item = std::result::Result<RowBlock, MatrixError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done || self.first >= self.n_cells {
            return None;
        }
        let block = self.block();
        self.done = block.is_err();
        Some(block)
    }
}

/// The entries of a matrix, checked, from 0.
struct Entries<'a> {
    folder: &'a MtxFolder,
    text: Text,
    read: u64,
}

impl<'a> Entries<'a> {
    fn open(folder: &'a MtxFolder) -> Result<Self> {
        let mut text = Text::open(&folder.matrix_path)?;
        text.header()?;
        Ok(Self { folder, text, read: 0 })
    }

    fn fault(&self, fault: impl Into<String>) -> ConvertError {
        self.text.fault(fault)
    }

    /// The next cell, gene and count.
    fn next(&mut self) -> std::result::Result<Option<(u64, u32, u32)>, MatrixError> {
        let header = self.folder.header;
        let found = loop {
            match self.text.line()? {
                None => break None,
                Some(line) if line.is_empty() || line[0] == b'%' => continue,
                Some(line) => break Some(parse_entry(line)),
            }
        };
        let Some(entry) = found else {
            return match self.read == header.entries {
                true => Ok(None),
                false => {
                    let fault = format!("ends after {} entries, expected {}", self.read, header.entries);
                    Err(self.fault(fault).into())
                }
            };
        };
        self.read += 1;
        if self.read > header.entries {
            return Err(self
                .fault(format!(
                    "has more than the {} entries that its header tells",
                    header.entries
                ))
                .into());
        }
        let (row, column, value) = entry.map_err(|fault| self.fault(fault))?;
        if row == 0 || column == 0 {
            return Err(self
                .fault(format!(
                    "entry {row} {column}: MatrixMarket counts rows and columns from 1"
                ))
                .into());
        }
        if row > header.rows || column > header.columns {
            let fault = format!(
                "entry {row} {column} lies outside {} rows and {} columns",
                header.rows, header.columns
            );
            return Err(self.fault(fault).into());
        }
        let (cell, gene) = match self.folder.cells_are_rows {
            true => (row - 1, column - 1),
            false => (column - 1, row - 1),
        };
        let gene = gene as u32;
        match value {
            Ok(count) => Ok(Some((cell, gene, count))),
            Err((value, why)) => Err(MatrixError::Count { cell, gene, value, why }),
        }
    }
}

type Value = std::result::Result<u32, (String, CountFault)>;

/// Row, column and value of a line, which is not empty.
fn parse_entry(line: &[u8]) -> std::result::Result<(u64, u64, Value), String> {
    let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let (Some(row), Some(column), Some(value), None) = (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(format!("{:?} is not a row, a column and a value", shown(line)));
    };
    let place = |field: &[u8]| parse_whole(field).ok_or_else(|| format!("{:?} is not a row or column", shown(field)));
    Ok((
        place(row)?,
        place(column)?,
        parse_count(value).ok_or_else(|| format!("{:?} is not a number", shown(value)))?,
    ))
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned()
}

/// Decimal digits, at most 18 of them, so that they fit.
fn parse_whole(field: &[u8]) -> Option<u64> {
    if field.is_empty() || field.len() > 18 {
        return None;
    }
    field.iter().try_fold(0, |number, &digit| {
        let digit = digit.wrapping_sub(b'0');
        (digit < 10).then(|| number * 10 + u64::from(digit))
    })
}

/// A count, or why the number is none; nothing when it is no number.
fn parse_count(field: &[u8]) -> Option<Value> {
    let text = || shown(field);
    if let Some(number) = parse_whole(field) {
        return Some(match i32::try_from(number) {
            Ok(count) => Ok(count as u32),
            Err(_) => Err((text(), CountFault::TooLarge)),
        });
    }
    let number: f64 = std::str::from_utf8(field).ok()?.parse().ok()?;
    let count = number as u32;
    Some(if f64::from(count) == number && count <= i32::MAX as u32 {
        Ok(count)
    } else if !number.is_finite() {
        Err((text(), CountFault::NotFinite))
    } else if number < 0.0 {
        Err((text(), CountFault::Negative))
    } else if number.fract() != 0.0 {
        Err((text(), CountFault::Fraction))
    } else {
        Err((text(), CountFault::TooLarge))
    })
}

/// A text file, decompressed by another thread if it is compressed.
struct Text {
    path: PathBuf,
    pieces: Receiver<std::io::Result<Vec<u8>>>,
    piece: Vec<u8>,
    at: usize,
    /// A line that began in the piece before.
    begun: Vec<u8>,
    /// The line that was read last, from 1.
    line: u64,
    ended: bool,
}

/// Opens a file that may be compressed with gzip: its first bytes tell.
fn open_text(path: &Path) -> Result<Box<dyn Read + Send>> {
    let file = File::open(path).map_err(ConvertError::io(path, "open"))?;
    let mut file = BufReader::with_capacity(1 << 17, file);
    let start = file.fill_buf().map_err(ConvertError::io(path, "read"))?;
    Ok(match start.starts_with(&[0x1f, 0x8b]) {
        true => Box::new(MultiGzDecoder::new(file)),
        false => Box::new(file),
    })
}

impl Text {
    fn open(path: &Path) -> Result<Self> {
        let mut reader = open_text(path)?;
        let (send, pieces) = sync_channel(TEXT_AHEAD);
        // The thread ends when the file does, or when nobody receives any more.
        std::thread::spawn(move || {
            loop {
                let mut piece = Vec::with_capacity(TEXT_BYTES);
                let read = reader.by_ref().take(TEXT_BYTES as u64).read_to_end(&mut piece);
                let last = !matches!(read, Ok(1..));
                if send.send(read.map(|_| piece)).is_err() || last {
                    return;
                }
            }
        });
        Ok(Self {
            path: path.to_path_buf(),
            pieces,
            piece: Vec::new(),
            at: 0,
            begun: Vec::new(),
            line: 0,
            ended: false,
        })
    }

    fn fault(&self, fault: impl Into<String>) -> ConvertError {
        ConvertError::input(&self.path, format!("line {}", self.line), fault)
    }

    /// The next line, without its end and spaces around it.
    fn line(&mut self) -> Result<Option<&[u8]>> {
        self.begun.clear();
        loop {
            let rest = &self.piece[self.at..];
            if let Some(length) = rest.iter().position(|&byte| byte == b'\n') {
                self.line += 1;
                let from = self.at;
                self.at += length + 1;
                if self.begun.is_empty() {
                    return Ok(Some(self.piece[from..from + length].trim_ascii()));
                }
                self.begun.extend_from_slice(&self.piece[from..from + length]);
                return Ok(Some(self.begun.trim_ascii()));
            }
            if self.begun.len() > TEXT_BYTES {
                return Err(self.fault("is longer than a line of a MatrixMarket file can be"));
            }
            self.begun.extend_from_slice(rest);
            self.at = 0;
            self.piece.clear();
            match self.ended {
                true if self.begun.is_empty() => return Ok(None),
                true => {
                    self.line += 1;
                    return Ok(Some(self.begun.trim_ascii()));
                }
                false => self.next_piece()?,
            }
        }
    }

    fn next_piece(&mut self) -> Result<()> {
        match self.pieces.recv() {
            Ok(Ok(piece)) => {
                self.ended = piece.is_empty();
                self.piece = piece;
                Ok(())
            }
            Ok(Err(source)) => Err(match source.kind() {
                std::io::ErrorKind::UnexpectedEof
                | std::io::ErrorKind::InvalidInput
                | std::io::ErrorKind::InvalidData => ConvertError::input(
                    &self.path,
                    format!("after line {}", self.line),
                    "the gzip stream is cut short or damaged",
                ),
                _ => ConvertError::io(&self.path, "read")(source),
            }),
            Err(_) => {
                self.ended = true;
                Ok(())
            }
        }
    }

    /// Reads the banner, comments and sizes.
    fn header(&mut self) -> Result<Header> {
        let path = self.path.clone();
        let fault = |fault: String| ConvertError::input(&path, "header", fault);
        let banner = self.line()?.map(shown).unwrap_or_default();
        let words: Vec<String> = banner.split_ascii_whitespace().map(str::to_ascii_lowercase).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["%%matrixmarket", "matrix", "coordinate", "integer" | "real", "general"] => {}
            ["%%matrixmarket", ..] => {
                return Err(fault(format!(
                    "{banner:?} is not supported, expected \"matrix coordinate integer general\", or real"
                )));
            }
            _ => return Err(fault(format!("begins with {banner:?}, expected \"%%MatrixMarket\""))),
        }
        loop {
            let Some(line) = self.line()? else {
                return Err(fault("ends before its sizes".into()));
            };
            if line.is_empty() || line[0] == b'%' {
                continue;
            }
            let sizes: Vec<Option<u64>> = line
                .split(u8::is_ascii_whitespace)
                .filter(|f| !f.is_empty())
                .map(parse_whole)
                .collect();
            let &[Some(rows), Some(columns), Some(entries)] = sizes.as_slice() else {
                return Err(fault(format!(
                    "has the sizes {:?}, expected rows, columns and entries",
                    shown(line)
                )));
            };
            return Ok(Header { rows, columns, entries });
        }
    }
}

/// Calls `each` with every line of a text file, its number counted from 1.
fn for_each_line(path: &Path, mut each: impl FnMut(u64, &str) -> Result<()>) -> Result<()> {
    let mut reader = BufReader::new(open_text(path)?);
    let (mut line, mut number) = (Vec::new(), 0);
    loop {
        line.clear();
        number += 1;
        let place = format!("line {number}");
        let read = reader.by_ref().take(TEXT_BYTES as u64).read_until(b'\n', &mut line);
        match read {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(ConvertError::input(path, place, format!("cannot be read: {error}"))),
        }
        let text = std::str::from_utf8(&line).map_err(|_| ConvertError::input(path, &place, "is not UTF-8"))?;
        each(number, text.trim_end_matches(['\n', '\r']))?;
    }
}

fn read_barcodes(path: &Path) -> Result<StringArray> {
    let mut barcodes = StringBuilder::new();
    for_each_line(path, |number, line| {
        if barcodes.values_slice().len() + line.len() > i32::MAX as usize {
            return Err(ConvertError::input(
                path,
                format!("line {number}"),
                "more than 2 GiB of barcodes",
            ));
        }
        barcodes.append_value(line.split('\t').next().unwrap_or_default());
        Ok(())
    })?;
    Ok(barcodes.finish())
}

/// The genes, with the columns that scanpy gives them, and the type of each where the file has types.
///
/// One column is both identifier and name; of two or more, the first is the identifier and the second the name.
fn read_genes(path: &Path) -> Result<(Genes, Vec<String>)> {
    let (mut ids, mut names, mut types) = (Vec::new(), Vec::new(), Vec::new());
    let mut columns = None;
    for_each_line(path, |number, line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let expected = *columns.get_or_insert(fields.len().min(3));
        if fields.len().min(3) != expected {
            let fault = format!(
                "has {} columns, expected {expected} as the lines before it have",
                fields.len()
            );
            return Err(ConvertError::input(path, format!("line {number}"), fault));
        }
        ids.push(fields[0].to_owned());
        names.push(fields.get(1).unwrap_or(&fields[0]).to_string());
        if let Some(kind) = fields.get(2) {
            types.push(kind.to_string());
        }
        Ok(())
    })?;
    let mut table = Vec::new();
    let mut add = |name: &str, values: &[String]| {
        table.push(GeneColumn {
            name: name.to_owned(),
            values: Arc::new(StringArray::from_iter_values(values)),
        });
    };
    if columns.is_some_and(|columns| columns >= 2) {
        add("gene_ids", &ids);
    }
    if !types.is_empty() {
        add("feature_types", &types);
    }
    let genes = Genes {
        names: Arc::new(names),
        index_name: None,
        columns: table,
    };
    Ok((genes, types))
}
