//! Runnable programs.
