//! What the user types and sees, one file per command.
