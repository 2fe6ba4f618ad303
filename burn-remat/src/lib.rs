//! Train any Burn model inside a memory budget stated in bytes.
#![recursion_limit = "256"]
