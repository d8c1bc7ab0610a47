//! Which kinds of files a mount shows.

/// A kind of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Arrays without a header: `data.i32` and its like, per tile and in `X`.
    Raw,
    /// The same with NumPy's header.
    Npy,
    /// Arrow files of cells and genes.
    Arrow,
    /// `dataset.h5ad`
    H5ad,
    /// `dataset.zarr`
    Zarr,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Raw, Self::Npy, Self::Arrow, Self::H5ad, Self::Zarr];

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Npy => "npy",
            Self::Arrow => "arrow",
            Self::H5ad => "h5ad",
            Self::Zarr => "zarr",
        }
    }

    /// The family of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }
}

/// A set of [`Family`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Families(u8);

impl Families {
    /// Every kind.
    pub fn all() -> Self {
        Family::ALL.into_iter().collect()
    }

    /// Whether `family` is among them.
    pub fn has(self, family: Family) -> bool {
        self.0 & 1 << family as u8 != 0
    }
}

impl FromIterator<Family> for Families {
    fn from_iter<T: IntoIterator<Item = Family>>(families: T) -> Self {
        Self(families.into_iter().fold(0, |set, family| set | 1 << family as u8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_in_and_nothing_else() {
        let set: Families = [Family::Npy, Family::Zarr].into_iter().collect();
        assert_eq!(
            Family::ALL.map(|family| set.has(family)),
            [false, true, false, false, true]
        );
        assert!(Family::ALL.into_iter().all(|family| Families::all().has(family)));
        assert!(
            Family::ALL
                .into_iter()
                .all(|family| Family::named(family.name()) == Some(family))
        );
        assert_eq!(Family::named("RAW"), None);
    }
}
