//! The format `remat-chain/1`.

use super::{Chain, ChainStage};
use crate::error::ChainError;

/// The format tag.
const FORMAT: &str = "remat-chain/1";

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    #[serde(default)]
    name: String,
    input_bytes: u64,
    input_gradient_bytes: u64,
    stages: Vec<ChainStage>,
}

impl Chain {
    /// Reads a chain in the format `remat-chain/1`.
    ///
    /// # Errors
    ///
    /// [`ChainError`], which names the field at fault.
    pub fn from_json(text: &str) -> Result<Self, ChainError> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let file: File = serde_path_to_error::deserialize(&mut reader).map_err(|error| ChainError::Json {
            field: error.path().to_string(),
            message: error.inner().to_string(),
        })?;
        reader.end().map_err(|error| ChainError::Json { field: ".".to_owned(), message: error.to_string() })?;
        if file.format != FORMAT {
            return Err(ChainError::Format { found: file.format });
        }
        Self::new(file.name, file.input_bytes, file.input_gradient_bytes, file.stages)
    }

    /// Writes the chain in the format `remat-chain/1`.
    pub fn to_json(&self) -> String {
        let file = File {
            format: FORMAT.to_owned(),
            name: self.name.clone(),
            input_bytes: self.input_bytes,
            input_gradient_bytes: self.input_gradient_bytes,
            stages: self.stages.clone(),
        };
        serde_json::to_string_pretty(&file).expect("strings, integers and finite numbers always serialize")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"format":"remat-chain/1","name":"c","input_bytes":10,"input_gradient_bytes":10,"stages":[
        {"forward_cost":10,"backward_cost":29,"activation_bytes":4,"saved_bytes":7,"gradient_bytes":4,
         "forward_scratch_bytes":0,"backward_scratch_bytes":3}]}"#;

    #[test]
    fn a_chain_survives_writing_and_reading() {
        let chain = Chain::from_json(GOOD).unwrap();
        assert_eq!(Chain::from_json(&chain.to_json()).unwrap(), chain);
    }

    #[test]
    fn errors_name_the_field() {
        let message = |from: &str, to: &str| {
            assert!(GOOD.contains(from));
            Chain::from_json(&GOOD.replace(from, to)).unwrap_err().to_string()
        };
        assert!(message("\"saved_bytes\":7", "\"saved_bytes\":-7").contains("stages[0].saved_bytes"));
        assert!(message("\"saved_bytes\":7", "\"saved_bites\":7").contains("saved_bites"));
        assert!(message("\"saved_bytes\":7,", "").contains("saved_bytes"));
        assert!(message("\"forward_cost\":10", "\"forward_cost\":-1").contains("stages[0].forward_cost"));
        assert!(message("\"forward_cost\":10", "\"forward_cost\":1e999").contains("stages[0].forward_cost"));
        assert!(message("\"forward_cost\":10", "\"forward_cost\":1e308").contains("add up to"));
        assert!(message("remat-chain/1", "remat-graph/1").contains("remat-graph/1"));
        assert!(message("\"saved_bytes\":7", "\"saved_bytes\":9223372036854775807").contains("2^63"));
        assert!(message("\"input_bytes\":10", "\"input_bytes\":18446744073709551616").contains("input_bytes"));
        assert!(Chain::from_json("").is_err());
        assert!(Chain::from_json("[1").is_err());
        assert!(Chain::from_json(&format!("{GOOD}x")).is_err());
        let empty = r#"{"format":"remat-chain/1","input_bytes":1,"input_gradient_bytes":1,"stages":[]}"#;
        assert_eq!(Chain::from_json(empty).unwrap_err(), ChainError::Empty);
    }
}
