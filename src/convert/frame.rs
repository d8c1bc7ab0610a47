//! Data frames in AnnData files: `obs` and `var`, in every layout that anndata has written.
//!
//! * groups with one dataset or group for each column (0.7 and later): plain arrays, `categorical` groups, and
//!   `nullable-*` groups of values and mask;
//! * of these, 0.7's categories, which stand apart in `__categories`;
//! * tables of records (before 0.7), with categories in `uns`.
//!
//! A column that the format cannot hold is kept by name, so that it can be refused by name.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int32Array, StringArray};

use super::error::Result;
use super::hdf5::{Element, H5Dataset, H5File, Member, Node, StoredNumber, bools};
use super::source::{SourceColumn, SourceKind};

/// Rows that are read at a time where a column is read whole.
const WINDOW_ROWS: u64 = 1 << 20;

/// A data frame.
pub(crate) struct Frame {
    file: Arc<H5File>,
    name: String,
    rows: u64,
    index: Values,
    index_name: Option<String>,
    columns: Vec<SourceColumn>,
    values: Vec<Values>,
    /// A column that is the index as well.
    is_index_too: Option<String>,
}

/// Where a column's values are.
enum Values {
    Plain(H5Dataset),
    Masked {
        values: H5Dataset,
        mask: H5Dataset,
    },
    Codes {
        codes: H5Dataset,
        vocabulary: Vocabulary,
    },
    Field {
        records: Arc<H5Dataset>,
        member: Member,
    },
    FieldCodes {
        records: Arc<H5Dataset>,
        member: Member,
        number: StoredNumber,
        vocabulary: Vocabulary,
    },
    Unsupported(String),
}

/// The labels of a categorical column, each once.
struct Vocabulary {
    labels: Vec<String>,
    /// The label of each stored code; the same as the code unless a label stands there twice.
    label_of_code: Vec<i32>,
    /// Whether the labels were text before they were labels.
    is_text: bool,
    /// Whether the input says that the labels have an order.
    is_ordered: bool,
}

impl Frame {
    /// Opens the data frame `name`, such as `obs` or `raw/var`.
    pub(crate) fn open(file: &Arc<H5File>, name: &str) -> Result<Self> {
        match file.node(name)? {
            Node::Group => Self::open_group(file, name),
            Node::Dataset(records) => Self::open_records(file, name, *records),
            Node::Absent => Err(file.fault(name, "is missing")),
        }
    }

    fn open_group(file: &Arc<H5File>, name: &str) -> Result<Self> {
        let attributes = file.attributes(name)?;
        let index_key = match attributes.text("_index") {
            Some(key) => key.to_owned(),
            None => match file.node(&format!("{name}/_index"))? {
                Node::Absent => "index".to_owned(),
                _ => "_index".to_owned(),
            },
        };
        let index = read_column(file, name, &index_key)?;
        let rows = index.rows();
        let order = match attributes.texts("column-order") {
            Some(order) => order.to_vec(),
            None => file.members(name)?,
        };
        let listed = attributes.texts("column-order").is_some();
        let is_index_too = (listed && order.contains(&index_key)).then(|| index_key.clone());
        // Without a list, what 0.7 keeps apart looks like a column.
        let names = order
            .into_iter()
            .filter(|column| *column != index_key && (listed || column != "__categories"));
        let (mut columns, mut values) = (Vec::new(), Vec::new());
        for column in names {
            let stored = read_column(file, name, &column)?;
            if stored.rows() != rows && !matches!(stored, Values::Unsupported(_)) {
                let fault = format!("has {} rows, expected {rows} as {index_key} has", stored.rows());
                return Err(file.fault(&format!("{name}/{column}"), fault));
            }
            columns.push(SourceColumn {
                name: column,
                kind: stored.kind(),
            });
            values.push(stored);
        }
        Ok(Self {
            file: Arc::clone(file),
            name: name.to_owned(),
            rows,
            index,
            index_name: (index_key != "_index").then_some(index_key),
            columns,
            values,
            is_index_too,
        })
    }

    fn open_records(file: &Arc<H5File>, name: &str, records: H5Dataset) -> Result<Self> {
        let Element::Record(members) = records.element().clone() else {
            return Err(records.fault(format!("holds {}, expected a data frame", records.element().describe())));
        };
        let records = Arc::new(records);
        let index_at = members.iter().position(|member| member.name == "index").unwrap_or(0);
        let mut index = None;
        let (mut columns, mut values) = (Vec::new(), Vec::new());
        for (at, member) in members.into_iter().enumerate() {
            if at == index_at {
                index = Some(Values::of_member(&records, member));
                continue;
            }
            let column = member.name.clone();
            let categories = format!("uns/{column}_categories");
            let stored = match (&member.element, file.node(&categories)?) {
                (Element::Number(number), Node::Dataset(labels)) => Values::FieldCodes {
                    records: Arc::clone(&records),
                    number: *number,
                    vocabulary: read_vocabulary(&labels)?,
                    member,
                },
                _ => Values::of_member(&records, member),
            };
            columns.push(SourceColumn {
                name: column,
                kind: stored.kind(),
            });
            values.push(stored);
        }
        let Some(index) = index else {
            return Err(file.fault(name, "is a table without columns"));
        };
        Ok(Self {
            file: Arc::clone(file),
            name: name.to_owned(),
            rows: records.rows(),
            index,
            index_name: None,
            columns,
            values,
            is_index_too: None,
        })
    }

    /// Rows.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// The columns, without the index.
    pub(crate) fn columns(&self) -> &[SourceColumn] {
        &self.columns
    }

    /// What of the frame is lost or becomes something else.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let with = |is: fn(&Vocabulary) -> bool| -> Vec<String> {
            let columns = self.columns.iter().zip(&self.values);
            columns
                .filter(|(_, values)| values.vocabulary().is_some_and(is))
                .map(|(column, _)| format!("{:?}", column.name))
                .collect()
        };
        let (others, ordered) = (with(|v| !v.is_text), with(|v| v.is_ordered));
        if !others.is_empty() {
            notes.push(format!(
                "{}: categories that are no text become text: {}",
                self.name,
                others.join(", ")
            ));
        }
        if !ordered.is_empty() {
            notes.push(format!(
                "{}: categories have no order any more: {}",
                self.name,
                ordered.join(", ")
            ));
        }
        if let Some(column) = &self.is_index_too {
            notes.push(format!(
                "{}: the column {column:?} is the index as well, and is kept as that alone",
                self.name
            ));
        }
        notes
    }

    /// The name of the index, where it has one.
    pub(crate) fn index_name(&self) -> Option<&str> {
        self.index_name.as_deref()
    }

    /// Some values of column `column`; see [`Source::column`](super::source::Source::column) for the types.
    pub(crate) fn read(&self, column: usize, rows: Range<u64>) -> Result<ArrayRef> {
        match &self.values[column] {
            Values::Unsupported(what) => {
                let place = format!("{}/{}", self.name, self.columns[column].name);
                Err(self.file.fault(&place, format!("holds {what}, which is not supported")))
            }
            values => values.read(rows),
        }
    }

    /// Some labels of the index.
    pub(crate) fn index(&self, rows: Range<u64>) -> Result<StringArray> {
        let text = |labels: Vec<String>| StringArray::from_iter_values(labels);
        match &self.index {
            Values::Plain(stored) => match stored.element() {
                Element::Number(number) => Ok(text(number.labels(&stored.read(rows, 1)?))),
                _ => stored.strings(rows, None),
            },
            Values::Masked { values, .. } => values.strings(rows, None),
            Values::Codes { vocabulary, .. } | Values::FieldCodes { vocabulary, .. } => {
                let codes = self.index.codes(rows)?;
                let label = |code: Option<i32>| code.map(|code| vocabulary.labels[code as usize].as_str());
                Ok(codes.iter().map(label).collect())
            }
            Values::Field { records, member } => {
                let bytes = records.read(rows.clone(), 1)?;
                match &member.element {
                    Element::Number(number) => Ok(text(number.labels(&records.member_bytes(member, &bytes)))),
                    _ => records.member_strings(member, &bytes, rows.start),
                }
            }
            Values::Unsupported(what) => Err(self
                .file
                .fault(&self.name, format!("its index holds {what}, expected names"))),
        }
    }

    /// The whole index.
    pub(crate) fn whole_index(&self) -> Result<Vec<String>> {
        let mut labels = Vec::new();
        for from in (0..self.rows).step_by(WINDOW_ROWS as usize) {
            let window = self.index(from..(from + WINDOW_ROWS).min(self.rows))?;
            labels.extend(window.iter().map(|label| label.unwrap_or_default().to_owned()));
        }
        Ok(labels)
    }
}

fn read_column(file: &H5File, frame: &str, column: &str) -> Result<Values> {
    let place = format!("{frame}/{column}");
    match file.node(&place)? {
        Node::Absent => Err(file.fault(&place, format!("is listed as a column of {frame}, but is missing"))),
        Node::Dataset(stored) => {
            if stored.shape().len() != 1 {
                return Ok(Values::Unsupported(format!("an array of shape {:?}", stored.shape())));
            }
            let categories = format!("{frame}/__categories/{column}");
            match (stored.element(), file.node(&categories)?) {
                (Element::Number(_), Node::Dataset(labels)) => Ok(Values::Codes {
                    vocabulary: read_vocabulary(&labels)?,
                    codes: *stored,
                }),
                (Element::Record(_) | Element::Other(_), _) => Ok(Values::Unsupported(stored.element().describe())),
                _ => Ok(Values::Plain(*stored)),
            }
        }
        Node::Group => read_group_column(file, &place),
    }
}

fn read_group_column(file: &H5File, place: &str) -> Result<Values> {
    let part = |name: &str| -> Result<Option<H5Dataset>> {
        match file.node(&format!("{place}/{name}"))? {
            Node::Dataset(stored) if stored.shape().len() == 1 => Ok(Some(*stored)),
            _ => Ok(None),
        }
    };
    if let Some(codes) = part("codes")? {
        let categories = format!("{place}/categories");
        let mut vocabulary = match file.node(&categories)? {
            Node::Dataset(labels) => read_vocabulary(&labels)?,
            // Labels of pandas' nullable string type are a group of values and mask; none of them is missing.
            Node::Group => read_vocabulary(&file.dataset(&format!("{categories}/values"))?)?,
            Node::Absent => return Err(file.fault(place, "has codes, but no categories")),
        };
        codes.number()?;
        vocabulary.is_ordered = file.attributes(place)?.is_true("ordered");
        return Ok(Values::Codes { codes, vocabulary });
    }
    if let (Some(values), Some(mask)) = (part("values")?, part("mask")?) {
        if values.rows() != mask.rows() {
            return Err(mask.fault(format!(
                "has {} rows, expected {} as values has",
                mask.rows(),
                values.rows()
            )));
        }
        return Ok(Values::Masked { values, mask });
    }
    let encoding = file.attributes(place)?.text("encoding-type").map(str::to_owned);
    Ok(Values::Unsupported(format!(
        "a group of the encoding {:?}",
        encoding.unwrap_or_default()
    )))
}

fn read_vocabulary(labels: &H5Dataset) -> Result<Vocabulary> {
    let mut vocabulary = Vocabulary::new(read_labels(labels)?);
    vocabulary.is_text = !matches!(labels.element(), Element::Number(_) | Element::Bool(_));
    Ok(vocabulary)
}

/// The labels of a vocabulary: strings, or numbers and truth values as Python prints them.
fn read_labels(stored: &H5Dataset) -> Result<Vec<String>> {
    let mut labels = Vec::new();
    for from in (0..stored.rows()).step_by(WINDOW_ROWS as usize) {
        let rows = from..(from + WINDOW_ROWS).min(stored.rows());
        match stored.element() {
            Element::Number(number) => labels.extend(number.labels(&stored.read(rows, 1)?)),
            Element::Bool(_) => {
                let name = |value: Option<bool>| if value == Some(true) { "True" } else { "False" }.to_owned();
                labels.extend(stored.bools(rows, None)?.iter().map(name));
            }
            _ => labels.extend(
                stored
                    .strings(rows, None)?
                    .iter()
                    .map(|label| label.unwrap_or_default().to_owned()),
            ),
        }
    }
    Ok(labels)
}

impl Values {
    fn vocabulary(&self) -> Option<&Vocabulary> {
        match self {
            Self::Codes { vocabulary, .. } | Self::FieldCodes { vocabulary, .. } => Some(vocabulary),
            _ => None,
        }
    }
}

impl Vocabulary {
    fn new(stored: Vec<String>) -> Self {
        let mut first = std::collections::HashMap::new();
        let mut labels = Vec::with_capacity(stored.len());
        let mut label_of_code = Vec::with_capacity(stored.len());
        for label in stored {
            let code = *first.entry(label.clone()).or_insert_with(|| {
                labels.push(label);
                labels.len() as i32 - 1
            });
            label_of_code.push(code);
        }
        Self {
            labels,
            label_of_code,
            is_text: true,
            is_ordered: false,
        }
    }
}

impl Values {
    fn of_member(records: &Arc<H5Dataset>, member: Member) -> Self {
        match &member.element {
            Element::Record(_) | Element::Other(_) => Self::Unsupported(member.element.describe()),
            _ => Self::Field {
                records: Arc::clone(records),
                member,
            },
        }
    }

    fn rows(&self) -> u64 {
        match self {
            Self::Plain(stored) => stored.rows(),
            Self::Masked { values, .. } => values.rows(),
            Self::Codes { codes, .. } => codes.rows(),
            Self::Field { records, .. } | Self::FieldCodes { records, .. } => records.rows(),
            Self::Unsupported(_) => 0,
        }
    }

    fn kind(&self) -> SourceKind {
        let of_element = |element: &Element| match element {
            Element::Number(number) => SourceKind::Numeric(number.kind),
            Element::Bool(_) => SourceKind::Bool,
            Element::FixedString { .. } | Element::String => SourceKind::String,
            other => SourceKind::Unsupported(other.describe()),
        };
        match self {
            Self::Plain(stored) => of_element(stored.element()),
            Self::Masked { values, .. } => of_element(values.element()),
            Self::Field { member, .. } => of_element(&member.element),
            Self::Codes { vocabulary, .. } | Self::FieldCodes { vocabulary, .. } => {
                SourceKind::Category(vocabulary.labels.clone())
            }
            Self::Unsupported(what) => SourceKind::Unsupported(what.clone()),
        }
    }

    fn read(&self, rows: Range<u64>) -> Result<ArrayRef> {
        match self {
            Self::Plain(stored) => read_plain(stored, rows, None),
            Self::Masked { values, mask } => {
                let mask: Vec<bool> = mask
                    .bools(rows.clone(), None)?
                    .iter()
                    .map(|bit| bit == Some(true))
                    .collect();
                read_plain(values, rows, Some(&mask))
            }
            Self::Codes { .. } | Self::FieldCodes { .. } => Ok(Arc::new(self.codes(rows)?)),
            Self::Field { records, member } => {
                let bytes = records.read(rows.clone(), 1)?;
                match &member.element {
                    Element::Number(number) => Ok(number.array(&records.member_bytes(member, &bytes), None)),
                    Element::Bool(size) => {
                        let values: BooleanArray = bools(&bytes, *size, records.element_bytes(), member.offset, None);
                        Ok(Arc::new(values))
                    }
                    _ => Ok(Arc::new(records.member_strings(member, &bytes, rows.start)?)),
                }
            }
            Self::Unsupported(_) => Ok(Arc::new(arrow::array::NullArray::new((rows.end - rows.start) as usize))),
        }
    }

    /// The codes of a categorical column, null where they are missing.
    fn codes(&self, rows: Range<u64>) -> Result<Int32Array> {
        let first = rows.start;
        let (stored, vocabulary, dataset) = match self {
            Self::Codes { codes, vocabulary } => (codes.number()?.signed(&codes.read(rows, 1)?), vocabulary, codes),
            Self::FieldCodes {
                records,
                member,
                number,
                vocabulary,
            } => {
                let bytes = records.read(rows, 1)?;
                (
                    number.signed(&records.member_bytes(member, &bytes)),
                    vocabulary,
                    &**records,
                )
            }
            _ => return Ok(Int32Array::new_null((rows.end - rows.start) as usize)),
        };
        let known = &vocabulary.label_of_code;
        let code = |(index, code): (usize, i64)| match usize::try_from(code).ok().and_then(|code| known.get(code)) {
            Some(&label) => Ok(Some(label)),
            None if code == -1 => Ok(None),
            None => Err(dataset.fault(format!(
                "the code of row {} is {code}, expected -1 (missing) to {}",
                first + index as u64,
                known.len() as i64 - 1
            ))),
        };
        stored.into_iter().enumerate().map(code).collect()
    }
}

fn read_plain(stored: &H5Dataset, rows: Range<u64>, missing: Option<&[bool]>) -> Result<ArrayRef> {
    match stored.element() {
        Element::Number(_) => stored.numbers(rows, missing),
        Element::Bool(_) => Ok(Arc::new(stored.bools(rows, missing)?)),
        _ => Ok(Arc::new(stored.strings(rows, missing)?)),
    }
}
