//! How inputs become one dataset: which genes in which order, which columns of obs, and how each input's values become
//! the dataset's. Decided from what inputs say of themselves and from the genes' totals, before anything is written.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, PrimitiveArray, RecordBatch, StringArray, new_null_array};
use arrow::compute::{CastOptions, cast, cast_with_options, concat};
use arrow::datatypes::{DataType, Field, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Schema, SchemaRef};

use super::error::{ConvertError, Result};
use super::genes::{GeneColumn, Genes, code_type};
use super::source::{Scan, Source, SourceColumn, SourceKind};
use crate::format::MAX_GENES;
use crate::format::obs::{ColumnKind, NumericType, ObsColumn, ObsSchema};
use crate::write::{WriteError, number_type, stored_type};

/// The column that holds the cells' names.
pub const OBS_NAMES: &str = "obs_names";
/// How many names a message lists.
const SHOWN: usize = 5;

/// What becomes of genes that not every input has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Join {
    /// There may be none.
    #[default]
    Same,
    /// They are left out.
    Inner,
    /// They are kept; their counts are zero where an input does not have them.
    Outer,
}

/// What a plan may choose.
#[derive(Debug, Clone)]
pub struct PlanOptions {
    /// What becomes of genes that not every input has.
    pub join: Join,
    /// The column of the gene tables by which genes of different inputs are the same; their index if there is none.
    pub gene_key: Option<String>,
    /// Whether genes are sorted by decreasing total.
    pub sort_genes: bool,
    /// Vocabularies larger than this become text.
    pub max_categories: usize,
    /// Columns of obs that are left out.
    pub obs_exclude: Vec<String>,
    /// The name of a column that says which input a cell is from.
    pub obs_source: Option<String>,
}

impl Default for PlanOptions {
    /// The same genes in every input, sorted; at most 20,000 categories; all columns.
    fn default() -> Self {
        Self {
            join: Join::Same,
            gene_key: None,
            sort_genes: true,
            max_categories: 20_000,
            obs_exclude: Vec::new(),
            obs_source: None,
        }
    }
}

/// The genes of all inputs together.
#[derive(Debug)]
pub struct GenePlan {
    /// In the order of first appearance, with the table that the inputs give.
    genes: Genes,
    /// Of each input, the place in `genes` of each of its genes; none for one that is left out. Inputs of the same
    /// genes share them.
    places: Vec<Arc<Vec<Option<u32>>>>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// The genes of the dataset.
#[derive(Debug)]
pub struct OrderedGenes {
    /// In the dataset's order.
    pub genes: Genes,
    /// The place of each among the genes of all inputs.
    pub order: Vec<i32>,
    /// Of each input, the column of each of its genes; none for one that is left out.
    pub columns: Vec<Arc<Vec<Option<u32>>>>,
}

/// What scans found of the genes of all inputs, in the order of first appearance.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// The sum of each gene's counts.
    pub counts: Vec<u64>,
    /// Each gene's nonzeros.
    pub nonzeros: Vec<u64>,
}

/// The columns of obs, and how each input fills them.
#[derive(Debug)]
pub struct ObsPlan {
    /// The columns of the dataset.
    pub columns: Vec<ObsColumn>,
    /// Of each input, where each column comes from.
    fills: Vec<Vec<Fill>>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// Where the values of a column come from in one input.
#[derive(Debug)]
enum Fill {
    /// Nowhere: they are missing.
    Missing,
    /// The cells' names.
    Names,
    /// This code for every cell.
    Code(i32),
    /// A column of truth values, numbers or text.
    Column(usize),
    /// A category column, with the dataset's code of each of the input's.
    Codes(usize, Vec<i32>),
    /// A category column that becomes text.
    Labels(usize),
}

fn refused<T>(what: String) -> Result<T> {
    Err(ConvertError::Plan(what))
}

/// A few of many names.
fn few<S: AsRef<str>>(names: &[S]) -> String {
    let mut shown: Vec<String> = names
        .iter()
        .take(SHOWN)
        .map(|name| format!("{:?}", name.as_ref()))
        .collect();
    if names.len() > SHOWN {
        shown.push(format!("… ({} in all)", names.len()));
    }
    shown.join(", ")
}

impl GenePlan {
    /// Finds which genes of the inputs are the same.
    ///
    /// # Errors
    /// When inputs do not have the same genes and `options` do not say what then, when a key column is missing, or when
    /// no gene is left.
    pub fn new(sources: &[Box<dyn Source>], options: &PlanOptions) -> Result<Self> {
        let mut notes = Vec::new();
        let mut union: Vec<(String, u32)> = Vec::new();
        let mut known: HashMap<(String, u32), u32> = HashMap::new();
        let mut holders: Vec<u32> = Vec::new();
        let mut places: Vec<Arc<Vec<u32>>> = Vec::with_capacity(sources.len());
        // Of each input, its genes that no input before it had.
        let mut new_genes: Vec<Vec<u32>> = Vec::new();
        // The first input in which a key stands more than once, and that key.
        let mut ambiguous: Option<(&dyn Source, String)> = None;
        for source in sources {
            let keys = keys(&**source, options.gene_key.as_deref())?;
            let mut seen: HashMap<&str, u32> = HashMap::new();
            let mut own = Vec::with_capacity(keys.len());
            let mut new = Vec::new();
            for (gene, key) in keys.iter().enumerate() {
                // The second gene of a name is the same as the second of that name elsewhere.
                let repetition = seen.entry(key).or_insert(0);
                let identity = (key.clone(), *repetition);
                *repetition += 1;
                let place = *known.entry(identity.clone()).or_insert_with(|| {
                    union.push(identity);
                    holders.push(0);
                    new.push(gene as u32);
                    union.len() as u32 - 1
                });
                holders[place as usize] += 1;
                own.push(place);
            }
            let repeated = seen.values().filter(|&&count| count > 1).count();
            if ambiguous.is_none()
                && let Some(key) = keys.iter().find(|key| seen[key.as_str()] > 1)
            {
                ambiguous = Some((&**source, key.clone()));
            }
            if repeated > 0 && notes.is_empty() {
                notes.push(format!(
                    "{}: {repeated} gene names stand there more than once",
                    source.path().display()
                ));
            }
            if options.join == Join::Same && !new_genes.is_empty() {
                same_genes(sources, &**source, &union, &own, &new)?;
            }
            places.push(match places.last() {
                Some(last) if **last == own => Arc::clone(last),
                _ => Arc::new(own),
            });
            new_genes.push(new);
        }
        // Where all inputs list the same genes in the same order, there is no doubt which is which.
        let all_alike = places.windows(2).all(|pair| Arc::ptr_eq(&pair[0], &pair[1]));
        if let Some((source, key)) = ambiguous
            && (!all_alike || repeated_differ(sources, options.gene_key.as_deref())?)
        {
            let column = match &options.gene_key {
                None => "gene names; tell them apart by another column with --gene-key, such as gene_ids".into(),
                Some(column) => format!("values of {column:?}; --gene-key needs a column without repetitions"),
            };
            return refused(format!(
                "{}: {key:?} stands more than once among the {column}",
                source.path().display()
            ));
        }
        let everywhere = |place: u32| holders[place as usize] as usize == sources.len();
        let kept: Vec<u32> = match options.join {
            Join::Inner => (0..union.len() as u32).filter(|&place| everywhere(place)).collect(),
            Join::Same | Join::Outer => (0..union.len() as u32).collect(),
        };
        if kept.len() < union.len() {
            notes.push(format!(
                "{} genes that not every input has are left out",
                union.len() - kept.len()
            ));
        }
        if kept.is_empty() || kept.len() as u64 > MAX_GENES {
            return refused(format!("there are {} genes, expected 1 to {MAX_GENES}", kept.len()));
        }
        let genes = table(sources, &new_genes, &mut notes)?.take(&kept);
        if let Some(name) = genes.names.iter().find(|name| name.contains(['\n', '\r'])) {
            return refused(format!(
                "the gene {name:?} has a line break in its name, which var_names.txt cannot hold"
            ));
        }
        let mut new_place = vec![None; union.len()];
        for (&old, new) in kept.iter().zip(0..) {
            new_place[old as usize] = Some(new);
        }
        let renumber = |own: Arc<Vec<u32>>| own.iter().map(|&place| new_place[place as usize]).collect();
        Ok(Self {
            genes,
            places: each_once(&places, |own| renumber(Arc::clone(own))),
            notes,
        })
    }

    /// The genes of all inputs, in the order of first appearance.
    pub fn genes(&self) -> &Genes {
        &self.genes
    }

    /// Of each input, the new number of each of its genes: `column` has one for each of [`GenePlan::genes`].
    pub(crate) fn columns(&self, column: &[u32]) -> Vec<Arc<Vec<Option<u32>>>> {
        let renumber = |place: &Option<u32>| place.map(|place| column[place as usize]);
        each_once(&self.places, |places| places.iter().map(renumber).collect())
    }

    /// Adds what the scan of input `input` found to `totals`, which begin empty.
    pub fn add(&self, input: usize, scan: &Scan, totals: &mut Totals) {
        totals.counts.resize(self.genes.len(), 0);
        totals.nonzeros.resize(self.genes.len(), 0);
        let found = scan.totals.iter().zip(&scan.nonzeros);
        for ((&count, &nonzeros), place) in found.zip(&*self.places[input]) {
            if let Some(place) = *place {
                let count = totals.counts[place as usize].saturating_add(count);
                totals.counts[place as usize] = count;
                totals.nonzeros[place as usize] += nonzeros;
            }
        }
    }

    /// Puts the genes in order: by decreasing total, those of equal total as they were; or as they are without totals.
    pub fn order(&self, totals: Option<&Totals>) -> OrderedGenes {
        let mut order: Vec<u32> = (0..self.genes.len() as u32).collect();
        if let Some(totals) = totals {
            order.sort_by_key(|&place| std::cmp::Reverse(totals.counts[place as usize]));
        }
        let mut column = vec![0; order.len()];
        for (&place, at) in order.iter().zip(0_u32..) {
            column[place as usize] = at;
        }
        OrderedGenes {
            genes: self.genes.take(&order),
            columns: self.columns(&column),
            order: order.into_iter().map(|place| place as i32).collect(),
        }
    }
}

/// Maps each of many lists, of which neighbours are mostly one and the same.
fn each_once<A, B>(lists: &[Arc<Vec<A>>], map: impl Fn(&Arc<Vec<A>>) -> Vec<B>) -> Vec<Arc<Vec<B>>> {
    let mut mapped: Vec<Arc<Vec<B>>> = Vec::with_capacity(lists.len());
    for (at, list) in lists.iter().enumerate() {
        mapped.push(match mapped.last() {
            Some(last) if Arc::ptr_eq(list, &lists[at - 1]) => Arc::clone(last),
            _ => Arc::new(map(list)),
        });
    }
    mapped
}

/// What genes of different inputs are compared by.
fn keys(source: &dyn Source, column: Option<&str>) -> Result<Vec<String>> {
    let genes = source.genes();
    match column {
        None => Ok(genes.names.to_vec()),
        Some(column) => genes.text(column).ok_or_else(|| {
            let columns: Vec<&str> = genes.columns.iter().map(|column| column.name.as_str()).collect();
            let fault = format!("has no text column {column:?}; it has {}", few(&columns));
            ConvertError::input(source.path(), "gene table", fault)
        }),
    }
}

/// Whether inputs that list the same keys in the same order say different things of genes whose key stands more than once.
fn repeated_differ(sources: &[Box<dyn Source>], gene_key: Option<&str>) -> Result<bool> {
    let [first, others @ ..] = sources else {
        return Ok(false);
    };
    let keys = keys(&**first, gene_key)?;
    let mut count: HashMap<&str, u32> = HashMap::new();
    keys.iter().for_each(|key| *count.entry(key).or_default() += 1);
    let repeated: Vec<usize> = (0..keys.len()).filter(|&gene| count[keys[gene].as_str()] > 1).collect();
    let texts = first.genes().columns.iter().filter_map(|column| {
        let text = first.genes().text(&column.name)?;
        Some((&column.name, text))
    });
    for (name, text) in texts {
        for other in others.iter().filter_map(|other| other.genes().text(name)) {
            if repeated.iter().any(|&gene| text[gene] != other[gene]) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// `own` and `new` are the genes of `source`: all of them, and those that no input before it had.
fn same_genes(
    sources: &[Box<dyn Source>],
    source: &dyn Source,
    union: &[(String, u32)],
    own: &[u32],
    new: &[u32],
) -> Result<()> {
    let own: HashSet<u32> = own.iter().copied().collect();
    let name = |place: u32| union[place as usize].0.as_str();
    let first = union.len() as u32 - new.len() as u32;
    let missing: Vec<&str> = (0..first).filter(|place| !own.contains(place)).map(name).collect();
    let added: Vec<&str> = (first..union.len() as u32).map(name).collect();
    if missing.is_empty() && added.is_empty() {
        return Ok(());
    }
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("lacks {}", few(&missing)));
    }
    if !added.is_empty() {
        parts.push(format!("has besides {}", few(&added)));
    }
    refused(format!(
        "{} has other genes than {}: it {}; choose --join inner or --join outer",
        source.path().display(),
        sources[0].path().display(),
        parts.join(" and ")
    ))
}

/// The gene table of all inputs: each gene's row is that of the first input that has it.
fn table(sources: &[Box<dyn Source>], new_genes: &[Vec<u32>], notes: &mut Vec<String>) -> Result<Genes> {
    let parts: Vec<Genes> = sources
        .iter()
        .zip(new_genes)
        .map(|(source, new)| source.genes().take(new))
        .collect();
    let Some(first) = sources.first().map(|source| source.genes()) else {
        return refused("there are no inputs".into());
    };
    let parts: Vec<&Genes> = parts.iter().filter(|part| !part.is_empty()).collect();
    let mut columns = Vec::new();
    for column in &first.columns {
        let values: Vec<ArrayRef> = parts
            .iter()
            .map(
                |part| match part.columns.iter().find(|other| other.name == column.name) {
                    Some(found) => Arc::clone(&found.values),
                    None => new_null_array(column.values.data_type(), part.len()),
                },
            )
            .collect();
        let same = values
            .iter()
            .all(|values| values.data_type() == column.values.data_type());
        let joined = match (same, values.as_slice()) {
            (_, []) => column.values.slice(0, 0),
            (_, [one]) => Arc::clone(one),
            (true, _) => join(&values, None)?,
            (false, _) => join(&values, Some(&DataType::Utf8))?,
        };
        columns.push(GeneColumn {
            name: column.name.clone(),
            values: joined,
        });
    }
    let others = sources
        .iter()
        .flat_map(|source| &source.genes().columns)
        .map(|column| &column.name);
    let mut dropped: Vec<&String> = others
        .filter(|name| first.columns.iter().all(|c| c.name != **name))
        .collect();
    dropped.sort();
    dropped.dedup();
    if !dropped.is_empty() {
        notes.push(format!(
            "the gene table has the first input's columns, not {}",
            few(&dropped)
        ));
    }
    Ok(Genes {
        names: Arc::new(parts.iter().flat_map(|part| part.names.iter().cloned()).collect()),
        index_name: first.index_name.clone(),
        columns,
    })
}

fn join(values: &[ArrayRef], to: Option<&DataType>) -> Result<ArrayRef> {
    let failed =
        |error: arrow::error::ArrowError| ConvertError::Plan(format!("the gene tables cannot be joined: {error}"));
    let cast: std::result::Result<Vec<ArrayRef>, _> = values
        .iter()
        .map(|values| match to {
            Some(to) => cast(values, to),
            None => Ok(Arc::clone(values)),
        })
        .collect();
    let values = cast.map_err(failed)?;
    let values: Vec<&dyn Array> = values.iter().map(|values| &**values).collect();
    concat(&values).map_err(failed)
}

impl ObsPlan {
    /// Finds a kind for every column that holds the values of all inputs.
    ///
    /// # Errors
    /// When there is none for some columns: all of them are named, with the option that leaves them out.
    pub fn new(sources: &[Box<dyn Source>], options: &PlanOptions) -> Result<Self> {
        let mut plan = Self {
            columns: Vec::new(),
            fills: sources.iter().map(|_| Vec::new()).collect(),
            notes: Vec::new(),
        };
        let (mut names, mut known) = (Vec::new(), HashSet::new());
        for column in sources.iter().flat_map(|source| source.columns()) {
            if !options.obs_exclude.contains(&column.name) && known.insert(column.name.as_str()) {
                names.push(column.name.as_str());
            }
        }
        let unknown: Vec<&String> = options
            .obs_exclude
            .iter()
            .filter(|name| {
                !sources
                    .iter()
                    .any(|source| source.columns().iter().any(|column| column.name == **name))
            })
            .collect();
        if !unknown.is_empty() {
            plan.notes.push(format!(
                "no input has the columns {} that were to be left out",
                few(&unknown)
            ));
        }
        let mut faults = Vec::new();
        for name in names {
            if let Err(fault) = plan.add(sources, name, options.max_categories)? {
                faults.push((name, fault));
            }
        }
        let taken = [Some(OBS_NAMES), options.obs_source.as_deref()];
        for name in taken.into_iter().flatten().filter(|name| known.contains(name)) {
            faults.push((name, "has the name of a column that is made".into()));
        }
        if !faults.is_empty() {
            let what: Vec<String> = faults
                .iter()
                .map(|(name, fault)| format!("column {name:?} {fault}"))
                .collect();
            let names: Vec<String> = faults
                .iter()
                .map(|(name, _)| format!("--obs-exclude {name:?}"))
                .collect();
            return refused(format!("obs: {}; leave out with {}", what.join("; "), names.join(" ")));
        }
        if let Some(name) = &options.obs_source {
            plan.add_source(sources, name);
        }
        plan.columns.push(ObsColumn {
            name: OBS_NAMES.into(),
            kind: ColumnKind::String,
        });
        plan.fills.iter_mut().for_each(|fills| fills.push(Fill::Names));
        // What the schema refuses is better known now than when everything has been read.
        ObsSchema::new(plan.columns.clone()).map_err(WriteError::from)?;
        Ok(plan)
    }

    /// Adds a column, or says why there can be none.
    fn add(
        &mut self,
        sources: &[Box<dyn Source>],
        name: &str,
        max_categories: usize,
    ) -> Result<std::result::Result<(), String>> {
        let mut found: Vec<Option<(usize, &SourceColumn)>> = sources
            .iter()
            .map(|source| {
                source
                    .columns()
                    .iter()
                    .enumerate()
                    .find(|(_, column)| column.name == name)
            })
            .collect();
        if let Some(what) = found.iter().flatten().find_map(|(_, column)| match &column.kind {
            SourceKind::Unsupported(what) => Some(what),
            _ => None,
        }) {
            return Ok(Err(format!("holds {what}, which the format cannot hold")));
        }
        let mut kind = unify(&found, max_categories);
        if kind.is_err() {
            // A column of nothing but NaN is what pandas makes of one that was missing altogether.
            for (source, column) in sources.iter().zip(&mut found) {
                if let Some((at, _)) = *column
                    && is_all_missing(&**source, at)?
                {
                    *column = None;
                }
            }
            kind = unify(&found, max_categories);
        }
        let kind = match kind {
            Ok(kind) => kind,
            Err(fault) => return Ok(Err(fault)),
        };
        let absent = found.iter().filter(|column| column.is_none()).count();
        if absent > 0 {
            self.notes.push(format!(
                "obs column {name:?} is missing in {absent} of {} inputs and is filled with missing values",
                sources.len()
            ));
        }
        if kind == ColumnKind::String
            && found
                .iter()
                .flatten()
                .any(|(_, c)| matches!(c.kind, SourceKind::Category(_)))
        {
            self.notes
                .push(format!("obs column {name:?} is stored as text, not as categories"));
        }
        let codes: HashMap<&str, i32> = match &kind {
            ColumnKind::Category { categories, .. } => categories.iter().map(String::as_str).zip(0..).collect(),
            _ => HashMap::new(),
        };
        for (column, fills) in found.iter().zip(&mut self.fills) {
            fills.push(match column {
                None => Fill::Missing,
                Some((at, column)) => match (&column.kind, &kind) {
                    (SourceKind::Category(labels), ColumnKind::Category { .. }) => {
                        Fill::Codes(*at, labels.iter().map(|label| codes[label.as_str()]).collect())
                    }
                    (SourceKind::Category(_), _) => Fill::Labels(*at),
                    _ => Fill::Column(*at),
                },
            });
        }
        self.columns.push(ObsColumn {
            name: name.to_owned(),
            kind,
        });
        Ok(Ok(()))
    }

    fn add_source(&mut self, sources: &[Box<dyn Source>], name: &str) {
        let mut categories: Vec<String> = Vec::new();
        for (source, fills) in sources.iter().zip(&mut self.fills) {
            let label = source.path().display().to_string();
            let code = categories.iter().position(|known| *known == label).unwrap_or_else(|| {
                categories.push(label);
                categories.len() - 1
            });
            fills.push(Fill::Code(code as i32));
        }
        self.columns.push(ObsColumn {
            name: name.to_owned(),
            kind: ColumnKind::Category {
                codes: code_type(categories.len()),
                categories,
            },
        });
    }

    /// The names and stored types of the columns.
    pub fn schema(&self) -> SchemaRef {
        let field = |column: &ObsColumn| Field::new(&column.name, stored_type(&column.kind), true);
        Arc::new(Schema::new(self.columns.iter().map(field).collect::<Vec<_>>()))
    }

    /// The rows of obs for some cells of input `input`, in the dataset's types.
    ///
    /// # Errors
    /// When they cannot be read, or a number cannot be held by the type that the column has in the dataset.
    pub fn rows(&self, sources: &[Box<dyn Source>], input: usize, cells: Range<u64>) -> Result<RecordBatch> {
        let source = &*sources[input];
        let mut values = Vec::with_capacity(self.columns.len());
        for (column, fill) in self.columns.iter().zip(&self.fills[input]) {
            values.push(fill_column(source, column, fill, cells.clone())?);
        }
        RecordBatch::try_new(self.schema(), values)
            .map_err(|error| ConvertError::input(source.path(), "obs", error.to_string()))
    }
}

type Found<'a> = [Option<(usize, &'a SourceColumn)>];

/// The kind that holds the values of all of these.
fn unify(found: &Found<'_>, max_categories: usize) -> std::result::Result<ColumnKind, String> {
    let mut kind: Option<ColumnKind> = None;
    let mut labels: Vec<&str> = Vec::new();
    let mut known = HashSet::new();
    for (_, column) in found.iter().flatten() {
        let own = match &column.kind {
            SourceKind::Category(own) => {
                labels.extend(own.iter().map(String::as_str).filter(|label| known.insert(*label)));
                ColumnKind::Category {
                    codes: NumericType::Int8,
                    categories: Vec::new(),
                }
            }
            SourceKind::Numeric(number) => ColumnKind::Numeric(*number),
            SourceKind::Bool => ColumnKind::Bool,
            SourceKind::String | SourceKind::Unsupported(_) => ColumnKind::String,
        };
        kind = Some(match (kind, own) {
            (None, own) => own,
            (Some(ColumnKind::Numeric(a)), ColumnKind::Numeric(b)) => ColumnKind::Numeric(promote(a, b)),
            (Some(a @ ColumnKind::Category { .. }), ColumnKind::Category { .. }) => a,
            (Some(ColumnKind::Bool), ColumnKind::Bool) => ColumnKind::Bool,
            (
                Some(ColumnKind::Category { .. } | ColumnKind::String),
                ColumnKind::String | ColumnKind::Category { .. },
            ) => ColumnKind::String,
            (Some(a), b) => return Err(format!("is of the kind {a} in one input and {b} in another")),
        });
    }
    Ok(match kind {
        Some(ColumnKind::Category { .. }) if labels.len() <= max_categories => ColumnKind::Category {
            codes: code_type(labels.len()),
            categories: labels.into_iter().map(str::to_owned).collect(),
        },
        Some(ColumnKind::Category { .. }) => ColumnKind::String,
        Some(kind) => kind,
        // Nothing but NaN everywhere.
        None => ColumnKind::Numeric(NumericType::Float64),
    })
}

/// The narrowest type that holds the values of both, as NumPy has it; but integers are never made floats for lack of
/// a wide enough one.
fn promote(a: NumericType, b: NumericType) -> NumericType {
    use NumericType::{Float16, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64};
    let is_float = |t| matches!(t, Float16 | Float32 | Float64);
    let is_signed = |t| matches!(t, Int8 | Int16 | Int32 | Int64);
    let wider = |a: NumericType, b: NumericType| if a.width() >= b.width() { a } else { b };
    match (is_float(a), is_float(b)) {
        (true, true) => wider(a, b),
        (true, false) | (false, true) => {
            let (float, whole) = if is_float(a) { (a, b) } else { (b, a) };
            match whole.width() {
                1 => float,
                2 => wider(float, Float32),
                _ => Float64,
            }
        }
        (false, false) if is_signed(a) == is_signed(b) => wider(a, b),
        (false, false) => {
            let (signed, unsigned) = if is_signed(a) { (a, b) } else { (b, a) };
            let least = match unsigned {
                UInt8 => Int16,
                UInt16 => Int32,
                UInt32 | UInt64 => Int64,
                other => other,
            };
            wider(signed, least)
        }
    }
}

fn is_all_missing(source: &dyn Source, column: usize) -> Result<bool> {
    const WINDOW: u64 = 1 << 16;
    let is_float = matches!(
        source.columns()[column].kind,
        SourceKind::Numeric(NumericType::Float16 | NumericType::Float32 | NumericType::Float64)
    );
    if !is_float {
        return Ok(false);
    }
    for from in (0..source.n_cells()).step_by(WINDOW as usize) {
        let values = source.column(column, from..(from + WINDOW).min(source.n_cells()))?;
        if values.null_count() < values.len() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn fill_column(source: &dyn Source, column: &ObsColumn, fill: &Fill, cells: Range<u64>) -> Result<ArrayRef> {
    let length = (cells.end - cells.start) as usize;
    let first = cells.start;
    let values: ArrayRef = match fill {
        Fill::Names => Arc::new(source.cell_names(cells)?),
        Fill::Code(code) => return Ok(codes(&column.kind, std::iter::repeat_n(*code, length))),
        Fill::Codes(at, map) => {
            let own = source.column(*at, cells)?;
            let own = own.as_primitive::<Int32Type>();
            return Ok(codes(
                &column.kind,
                own.iter().map(|code| code.map_or(-1, |code| map[code as usize])),
            ));
        }
        Fill::Missing => match &column.kind {
            ColumnKind::Category { .. } => return Ok(codes(&column.kind, std::iter::repeat_n(-1, length))),
            ColumnKind::Numeric(number) => return Ok(new_null_array(&number_type(*number), length)),
            ColumnKind::Bool => Arc::new(BooleanArray::new_null(length)),
            ColumnKind::String => Arc::new(StringArray::new_null(length)),
        },
        Fill::Labels(at) => {
            let own = source.column(*at, cells)?;
            let SourceKind::Category(labels) = &source.columns()[*at].kind else {
                return Ok(own);
            };
            let label = |code: Option<i32>| code.map(|code| labels[code as usize].as_str());
            Arc::new(
                own.as_primitive::<Int32Type>()
                    .iter()
                    .map(label)
                    .collect::<StringArray>(),
            )
        }
        Fill::Column(at) => source.column(*at, cells)?,
    };
    match &column.kind {
        ColumnKind::Numeric(number) => exact_cast(&values, &number_type(*number)).map_err(|row| {
            let place = format!("obs column {:?}, cell {}", column.name, first + row as u64);
            let fault = format!(
                "its value cannot be stored as {}, the type that all inputs share",
                number.arrow_name()
            );
            ConvertError::input(source.path(), place, fault)
        }),
        _ => Ok(values),
    }
}

/// Codes in the type that the column stores.
fn codes(kind: &ColumnKind, codes: impl Iterator<Item = i32>) -> ArrayRef {
    let stored = match kind {
        ColumnKind::Category { codes, .. } => *codes,
        _ => NumericType::Int32,
    };
    // The type was chosen so that every code fits.
    match stored {
        NumericType::Int8 => Arc::new(codes.map(|code| Some(code as i8)).collect::<PrimitiveArray<Int8Type>>()),
        NumericType::Int16 => Arc::new(
            codes
                .map(|code| Some(code as i16))
                .collect::<PrimitiveArray<Int16Type>>(),
        ),
        _ => Arc::new(codes.map(Some).collect::<PrimitiveArray<Int32Type>>()),
    }
}

/// The values in another type.
///
/// # Errors
/// The first row whose value would not be the same.
fn exact_cast(values: &ArrayRef, to: &DataType) -> std::result::Result<ArrayRef, usize> {
    if values.data_type() == to {
        return Ok(Arc::clone(values));
    }
    let lossy = CastOptions::default();
    let converted = cast_with_options(values, to, &lossy).map_err(|_| 0_usize)?;
    if let Some(row) = (0..values.len()).find(|&row| values.is_valid(row) && converted.is_null(row)) {
        return Err(row);
    }
    // Only wide integers can change by becoming floats.
    if matches!(to, DataType::Float64) && matches!(values.data_type(), DataType::Int64 | DataType::UInt64) {
        let back = cast_with_options(&converted, values.data_type(), &lossy).map_err(|_| 0_usize)?;
        let same = |row: usize| match values.data_type() {
            DataType::Int64 => {
                values.as_primitive::<Int64Type>().value(row) == back.as_primitive::<Int64Type>().value(row)
            }
            _ => converted.as_primitive::<Float64Type>().value(row) < 9_007_199_254_740_992.0,
        };
        if let Some(row) = (0..values.len()).find(|&row| values.is_valid(row) && !(back.is_valid(row) && same(row))) {
            return Err(row);
        }
    }
    Ok(converted)
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::super::source::{Reading, RowStream};
    use arrow::array::{Float64Array, Int64Array, UInt64Array};
    use std::path::{Path, PathBuf};

    /// An input without counts.
    struct Table {
        path: PathBuf,
        genes: Genes,
        columns: Vec<SourceColumn>,
        values: Vec<ArrayRef>,
    }

    impl Source for Table {
        fn path(&self) -> &Path {
            &self.path
        }
        fn format(&self) -> &'static str {
            "h5ad"
        }
        fn bytes(&self) -> u64 {
            0
        }
        fn n_cells(&self) -> u64 {
            3
        }
        fn entries(&self) -> Option<u64> {
            None
        }
        fn genes(&self) -> &Genes {
            &self.genes
        }
        fn columns(&self) -> &[SourceColumn] {
            &self.columns
        }
        fn column(&self, column: usize, cells: Range<u64>) -> Result<ArrayRef> {
            Ok(self.values[column].slice(cells.start as usize, (cells.end - cells.start) as usize))
        }
        fn cell_names(&self, cells: Range<u64>) -> Result<StringArray> {
            Ok(cells.map(|cell| Some(format!("cell {cell}"))).collect())
        }
        fn scan(&self, _: &Reading) -> Result<Scan> {
            Ok(Scan::default())
        }
        fn rows<'a>(&'a self, _: &Reading) -> Result<RowStream<'a>> {
            Ok(Box::new(std::iter::empty()))
        }
        fn gene_tables(&mut self) -> Vec<&mut Genes> {
            vec![&mut self.genes]
        }
    }

    fn table(path: &str, genes: &[&str], columns: Vec<(&str, SourceKind, ArrayRef)>) -> Box<dyn Source> {
        let mut table = Table {
            path: path.into(),
            genes: Genes::named(genes.iter().map(|&gene| gene.to_owned()).collect()),
            columns: Vec::new(),
            values: Vec::new(),
        };
        for (name, kind, values) in columns {
            table.columns.push(SourceColumn {
                name: name.into(),
                kind,
            });
            table.values.push(values);
        }
        Box::new(table)
    }

    fn category(labels: &[&str], codes: [Option<i32>; 3]) -> (SourceKind, ArrayRef) {
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        (
            SourceKind::Category(labels),
            Arc::new(PrimitiveArray::<Int32Type>::from(codes.to_vec())),
        )
    }

    fn scan(totals: &[u64]) -> Scan {
        Scan {
            totals: totals.to_vec(),
            nonzeros: vec![1; totals.len()],
        }
    }

    fn genes(inputs: &[&[&str]], join: Join) -> Result<GenePlan> {
        let sources: Vec<_> = inputs
            .iter()
            .zip(["a", "b", "c"])
            .map(|(genes, path)| table(path, genes, vec![]))
            .collect();
        let options = PlanOptions {
            join,
            ..PlanOptions::default()
        };
        GenePlan::new(&sources, &options)
    }

    #[test]
    fn genes_are_sorted_by_their_total_over_all_inputs_and_equal_ones_stay_as_they_were() {
        let plan = genes(&[&["x", "y", "z", "w"], &["w", "z", "y", "x"]], Join::Same).unwrap();
        let mut totals = Totals::default();
        plan.add(0, &scan(&[1, 5, 5, 0]), &mut totals);
        plan.add(1, &scan(&[9, 5, 5, 0]), &mut totals);
        assert_eq!((totals.counts[0], totals.nonzeros[0]), (1, 2));
        let ordered = plan.order(Some(&totals));
        assert_eq!(*ordered.genes.names, ["y", "z", "w", "x"]);
        assert_eq!(ordered.order, [1, 2, 3, 0]);
        assert_eq!(*ordered.columns[1], [Some(2), Some(1), Some(0), Some(3)]);
        assert_eq!(*plan.order(None).genes.names, ["x", "y", "z", "w"]);
    }

    #[test]
    fn other_genes_are_refused_by_name_unless_a_join_is_chosen() {
        let inputs: [&[&str]; 2] = [&["x", "y"], &["y", "z"]];
        let message = genes(&inputs, Join::Same).unwrap_err().to_string();
        assert!(
            message.contains("b has other genes than a: it lacks \"x\" and has besides \"z\""),
            "{message}"
        );
        assert_eq!(*genes(&inputs, Join::Inner).unwrap().genes().names, ["y"]);
        let outer = genes(&inputs, Join::Outer).unwrap();
        assert_eq!(*outer.genes().names, ["x", "y", "z"]);
        assert_eq!(*outer.places[0], [Some(0), Some(1)]);
        assert_eq!(*outer.places[1], [Some(1), Some(2)]);
        assert!(genes(&[&["x"], &["y"]], Join::Inner).is_err());
        let broken = genes(&[&["x", "y\nz"]], Join::Same).unwrap_err().to_string();
        assert!(broken.contains("\"y\\nz\" has a line break"), "{broken}");
    }

    #[test]
    fn genes_of_one_name_are_those_of_the_same_place_or_refused() {
        let plan = genes(&[&["x", "y", "x"], &["x", "y", "x"]], Join::Same).unwrap();
        assert_eq!(*plan.places[1], [Some(0), Some(1), Some(2)]);
        assert!(
            plan.notes[0].contains("1 gene names stand there more than once"),
            "{:?}",
            plan.notes
        );
        // Which of the two is meant nobody knows.
        for (inputs, join) in [
            ([&["x", "y", "x"][..], &["y", "x", "x"]], Join::Same),
            ([&["x", "x"], &["x"]], Join::Outer),
            ([&["x"], &["y", "x", "x"]], Join::Inner),
        ] {
            let refused = genes(&inputs, join).unwrap_err().to_string();
            assert!(refused.contains("\"x\" stands more than once"), "{refused}");
            assert!(refused.contains("--gene-key"), "{refused}");
        }
    }

    #[test]
    fn genes_of_one_name_with_other_ids_are_refused() {
        let input = |ids: [&str; 3]| {
            let mut source = table("a", &["x", "y", "x"], vec![]);
            let ids: ArrayRef = Arc::new(StringArray::from_iter_values(ids));
            source.gene_tables()[0].columns.push(GeneColumn {
                name: "gene_ids".into(),
                values: ids,
            });
            source
        };
        let plan = |inputs: &[Box<dyn Source>], key: Option<&str>| {
            let options = PlanOptions {
                gene_key: key.map(str::to_owned),
                ..PlanOptions::default()
            };
            GenePlan::new(inputs, &options)
        };
        assert!(plan(&[input(["1", "2", "3"]), input(["1", "9", "3"])], None).is_ok());
        let swapped = [input(["1", "2", "3"]), input(["3", "2", "1"])];
        let refused = plan(&swapped, None).err().unwrap().to_string();
        assert!(refused.contains("\"x\" stands more than once"), "{refused}");
        let told_apart = plan(&swapped, Some("gene_ids")).unwrap();
        assert_eq!(*told_apart.places[1], [Some(2), Some(1), Some(0)]);
    }

    #[test]
    fn vocabularies_are_global_in_order_of_first_appearance() {
        let (kind, values) = category(&["b", "a"], [Some(0), Some(1), None]);
        let (other, others) = category(&["c", "a"], [Some(0), Some(1), Some(0)]);
        let sources = [
            table("a", &["x"], vec![("k", kind, values)]),
            table("b", &["x"], vec![("k", other, others)]),
        ];
        let plan = ObsPlan::new(&sources, &PlanOptions::default()).unwrap();
        let ColumnKind::Category { categories, codes } = &plan.columns[0].kind else {
            panic!()
        };
        assert_eq!(
            (categories.as_slice(), *codes),
            (&["b", "a", "c"].map(str::to_owned)[..], NumericType::Int8)
        );
        let rows = |input| {
            plan.rows(&sources, input, 0..3)
                .unwrap()
                .column(0)
                .as_primitive::<Int8Type>()
                .values()
                .to_vec()
        };
        assert_eq!((rows(0), rows(1)), (vec![0, 1, -1], vec![2, 1, 2]));
        let few = PlanOptions {
            max_categories: 2,
            ..PlanOptions::default()
        };
        let plan = ObsPlan::new(&sources, &few).unwrap();
        assert_eq!(plan.columns[0].kind, ColumnKind::String);
        let text = plan.rows(&sources, 1, 1..3).unwrap();
        let text: Vec<_> = text
            .column(0)
            .as_string::<i32>()
            .iter()
            .map(Option::unwrap)
            .map(str::to_owned)
            .collect();
        assert_eq!(text, ["a", "c"]);
    }

    #[test]
    fn numbers_are_promoted_and_what_does_not_fit_is_refused() {
        use NumericType::*;
        for (a, b, both) in [
            (Int8, Int16, Int16),
            (UInt8, Int8, Int16),
            (UInt32, Int8, Int64),
            (UInt64, Int8, Int64),
            (Int16, Float16, Float32),
            (Int64, Float32, Float64),
            (Float32, Float64, Float64),
        ] {
            assert_eq!((promote(a, b), promote(b, a)), (both, both), "{a:?} {b:?}");
        }
        let big: ArrayRef = Arc::new(UInt64Array::from(vec![1, u64::MAX]));
        assert_eq!(exact_cast(&big, &DataType::Int64), Err(1));
        let odd: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, (1 << 53) + 1]));
        assert_eq!(exact_cast(&odd, &DataType::Float64).unwrap_err(), 2);
        assert!(exact_cast(&odd.slice(0, 2), &DataType::Float64).is_ok());
    }

    #[test]
    fn columns_that_an_input_lacks_or_that_are_nothing_but_nan_are_missing() {
        let (kind, values) = category(&["a"], [Some(0), Some(0), None]);
        let nan: ArrayRef = Arc::new(Float64Array::new_null(3));
        let sources = [
            table("a", &["x"], vec![("k", kind, values)]),
            table("b", &["x"], vec![("k", SourceKind::Numeric(NumericType::Float64), nan)]),
            table("c", &["x"], vec![]),
        ];
        let plan = ObsPlan::new(&sources, &PlanOptions::default()).unwrap();
        assert!(plan.notes[0].contains("missing in 2 of 3 inputs"), "{:?}", plan.notes);
        for input in [1, 2] {
            let rows = plan.rows(&sources, input, 0..3).unwrap();
            assert_eq!(rows.column(0).as_primitive::<Int8Type>().values(), &[-1, -1, -1]);
            assert_eq!(rows.column(1).as_string::<i32>().value(2), "cell 2");
        }
    }

    #[test]
    fn columns_that_cannot_be_one_are_all_named_with_the_option_that_leaves_them_out() {
        let (kind, values) = category(&["a"], [Some(0); 3]);
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let whole = SourceKind::Numeric(NumericType::Int64);
        let sources = [
            table(
                "a",
                &["x"],
                vec![
                    ("k", kind, values),
                    ("when", SourceKind::Unsupported("times".into()), numbers.clone()),
                ],
            ),
            table("b", &["x"], vec![("k", whole, numbers)]),
        ];
        let message = ObsPlan::new(&sources, &PlanOptions::default()).unwrap_err().to_string();
        assert!(
            message.contains("column \"k\" is of the kind category in one input and numeric in another"),
            "{message}"
        );
        assert!(
            message.contains("--obs-exclude \"k\" --obs-exclude \"when\""),
            "{message}"
        );
        let options = PlanOptions {
            obs_exclude: vec!["k".into(), "when".into()],
            obs_source: Some("file".into()),
            ..PlanOptions::default()
        };
        let plan = ObsPlan::new(&sources, &options).unwrap();
        let names: Vec<_> = plan.columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["file", "obs_names"]);
        assert_eq!(
            plan.rows(&sources, 1, 0..1)
                .unwrap()
                .column(0)
                .as_primitive::<Int8Type>()
                .value(0),
            1
        );
    }
}
