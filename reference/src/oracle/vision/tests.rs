//! Faults planted in the tower.
