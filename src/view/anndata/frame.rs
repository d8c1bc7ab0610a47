//! A data frame as anndata stores it: an index, columns, their order; and what columns can be.

use std::collections::BTreeMap;

use super::{ArrayNode, Attribute, Container, Dtype, Group, Member, Source, Value, encoding, group, text, vector};
use crate::format::names::{MAX_NAME_BYTES, column_file_name};
use crate::format::obs::NumericType;

/// Whether a missing value of this type needs a mask to say so.
pub(super) fn needs_mask(dtype: Dtype) -> bool {
    use NumericType::{Float16, Float32, Float64};
    !matches!(dtype, Dtype::Number(Float16 | Float32 | Float64))
}

/// What a frame without a name calls its index, unless a column has that name.
pub(super) fn index_name(taken: impl Fn(&str) -> bool) -> String {
    let mut name = "_index".to_owned();
    while taken(&name) {
        name.push('_');
    }
    name
}

/// A `dataframe` in the making.
pub(super) struct Frame {
    group: Group,
    index: String,
    order: Vec<String>,
    container: Container,
}

impl Frame {
    pub(super) fn new(index: String, names: ArrayNode, container: Container) -> Self {
        let mut frame = group("dataframe", "0.2.0");
        let index = place(&mut frame, &index, Member::Array(names), container, Slash::Nests);
        Self {
            group: frame,
            index,
            order: Vec::new(),
            container,
        }
    }

    /// Adds a column, under its own name where the container allows it.
    pub(super) fn add(&mut self, name: &str, column: Member) {
        let placed = place(&mut self.group, name, column, self.container, Slash::Nests);
        self.order.push(placed);
    }

    pub(super) fn finish(mut self) -> Group {
        self.group.attributes.push(text("_index", &self.index));
        self.group.attributes.push(Attribute {
            name: "column-order",
            value: Value::Texts(self.order),
        });
        self.group
    }
}

/// A `categorical` column.
pub(super) fn categorical(codes: ArrayNode, categories: ArrayNode, ordered: bool) -> Member {
    let mut column = group("categorical", "0.2.0");
    column.attributes.push(Attribute {
        name: "ordered",
        value: Value::Bool(ordered),
    });
    column.members = members([("codes", codes), ("categories", categories)]);
    Member::Group(column)
}

/// A column of values of their own: an array, or an array and a mask where values are missing and need one.
pub(super) fn plain(
    dtype: Dtype,
    rows: u64,
    values: Source,
    has_missing: bool,
    mask: impl FnOnce() -> Source,
) -> Member {
    let values = vector(dtype, rows, values);
    if !has_missing || !needs_mask(dtype) {
        return Member::Array(values);
    }
    let kind = match dtype {
        Dtype::Number(_) => "nullable-integer",
        Dtype::Bool => "nullable-boolean",
        Dtype::Text { .. } => "nullable-string-array",
    };
    let mask = vector(Dtype::Bool, rows, mask());
    Member::Group(Group {
        attributes: encoding(kind, "0.1.0"),
        members: members([("values", values), ("mask", mask)]),
    })
}

fn members<const N: usize>(arrays: [(&str, ArrayNode); N]) -> BTreeMap<String, Member> {
    let member = |(name, array): (&str, _)| (name.to_owned(), Member::Array(array));
    arrays.into_iter().map(member).collect()
}

/// What a `/` in a name means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slash {
    /// A group in between, as anndata itself writes columns with such names.
    Nests,
    /// Nothing: it is written `%2F`.
    IsEncoded,
}

/// Puts a member under its name, or under the nearest one that the container can hold and that is free; returns which.
///
/// A name that cannot be used is percent-encoded, as column files of the mount are; one that is still no name (`..`,
/// nothing, or what Zarr calls its own documents) has its dots encoded, or is `%`. One that is taken grows a `+`.
pub(super) fn place(group: &mut Group, name: &str, member: Member, container: Container, slash: Slash) -> String {
    let parts: Vec<&str> = match slash {
        Slash::Nests => name.split('/').collect(),
        Slash::IsEncoded => vec![name],
    };
    if parts.iter().all(|part| is_allowed(part, container))
        && let Some(room) = room(group, &parts)
    {
        room.insert(parts[parts.len() - 1].to_owned(), member);
        return name.to_owned();
    }
    let mut encoded = column_file_name(name, "");
    if !is_allowed(&encoded, container) {
        encoded = encoded.replace('.', "%2E");
    }
    if encoded.is_empty() {
        encoded.push('%');
    }
    while group.members.contains_key(&encoded) {
        encoded.push('+');
    }
    group.members.insert(encoded.clone(), member);
    encoded
}

/// The members of the group that the last part of the path belongs in, if it is free there. Groups on the way are made; only
/// those, which have no meaning of their own and so no attributes, are passed through.
fn room<'a>(group: &'a mut Group, parts: &[&str]) -> Option<&'a mut BTreeMap<String, Member>> {
    if !is_free(group, parts) {
        return None;
    }
    let mut members = &mut group.members;
    for part in &parts[..parts.len() - 1] {
        let made = || Member::Group(Group::default());
        match members.entry((*part).to_owned()).or_insert_with(made) {
            Member::Group(between) => members = &mut between.members,
            Member::Array(_) => return None,
        }
    }
    Some(members)
}

fn is_free(group: &Group, parts: &[&str]) -> bool {
    match (group.members.get(parts[0]), &parts[1..]) {
        (None, _) => true,
        (Some(_), []) => false,
        (Some(Member::Group(between)), rest) => between.attributes.is_empty() && is_free(between, rest),
        (Some(Member::Array(_)), _) => false,
    }
}

fn is_allowed(name: &str, container: Container) -> bool {
    let anywhere = !name.is_empty() && name != "." && !name.contains(['/', '\0']);
    match container {
        Container::Hdf5 => anywhere,
        Container::Zarr => {
            // Readers look for documents of version 2 by these names, and turn backslashes round.
            let documents = ["..", "zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata"];
            anywhere && name.len() <= MAX_NAME_BYTES && !name.contains('\\') && !documents.contains(&name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::anndata::dict;

    fn number() -> Member {
        Member::Array(vector(
            Dtype::Number(NumericType::Int8),
            0,
            Source::Bytes([].as_slice().into()),
        ))
    }

    fn placed(names: &[&str], container: Container, slash: Slash) -> Vec<String> {
        let mut group = dict();
        let place = |name: &&str| place(&mut group, name, number(), container, slash);
        names.iter().map(place).collect()
    }

    #[test]
    fn names_that_a_container_can_hold_stay_as_they_are() {
        let names = ["cell type", "100%", "donn\u{e9}es", "a.b", "..", "\\", &"x".repeat(270)];
        assert_eq!(placed(&names, Container::Hdf5, Slash::Nests), names);
        assert_eq!(placed(&names[..4], Container::Zarr, Slash::Nests), names[..4]);
        let zarr = placed(&names[4..], Container::Zarr, Slash::Nests);
        assert_eq!(zarr[..2], ["%2E%2E", "%5C"]);
        assert_eq!(zarr[2].len(), MAX_NAME_BYTES);
        let own = placed(&["zarr.json", ".zarray"], Container::Zarr, Slash::Nests);
        assert_eq!(own, ["zarr%2Ejson", "%2Ezarray"]);
    }

    #[test]
    fn names_that_none_can_hold_are_encoded() {
        for container in [Container::Hdf5, Container::Zarr] {
            let names = placed(&["", ".", "a\0", "/", "a//b"], container, Slash::Nests);
            assert_eq!(names, ["%", "%2E", "a%00", "%2F", "a%2F%2Fb"]);
        }
    }

    #[test]
    fn no_two_members_have_one_name() {
        let names = placed(&["%2E", ".", ".", "x", "x"], Container::Hdf5, Slash::Nests);
        assert_eq!(names, ["%2E", "%2E+", "%2E++", "x", "x+"]);
    }

    #[test]
    fn a_slash_nests_where_nothing_else_is_in_the_way() {
        let names = placed(&["a/b", "a/c", "a", "d", "d/e"], Container::Hdf5, Slash::Nests);
        assert_eq!(names, ["a/b", "a/c", "a+", "d", "d%2Fe"]);
        assert_eq!(placed(&["a/b"], Container::Zarr, Slash::IsEncoded), ["a%2Fb"]);
        // The parts of a column are not places for other columns.
        let mut group = dict();
        let array = || vector(Dtype::Bool, 0, Source::Bytes([].as_slice().into()));
        place(
            &mut group,
            "c",
            categorical(array(), array(), false),
            Container::Hdf5,
            Slash::Nests,
        );
        let name = place(&mut group, "c/more", number(), Container::Hdf5, Slash::Nests);
        assert_eq!(name, "c%2Fmore");
    }

    #[test]
    fn an_index_gives_way_to_columns() {
        assert_eq!(index_name(|_| false), "_index");
        assert_eq!(index_name(|name| ["_index", "_index_"].contains(&name)), "_index__");
    }
}
