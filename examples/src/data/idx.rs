//! The file format of MNIST: a magic number, the sizes of all dimensions (big-endian), then one byte per value.

use std::fs;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

/// The training or the test images of MNIST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MnistSet {
    /// 60,000 images.
    Train,
    /// 10,000 others.
    Test,
}

impl MnistSet {
    /// The beginning of its file names, and the folder in which Burn's loader keeps them.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Train => ("train", "train"),
            Self::Test => ("t10k", "test"),
        }
    }
}

/// Images with values from 0 to 1, and their side.
pub(super) fn images(folder: &Path, set: MnistSet) -> Result<(Vec<Vec<f32>>, usize), String> {
    let (sizes, values) = read::<3>(folder, set, "images-idx3-ubyte")?;
    let [_, side, width] = sizes;
    if side != width || side == 0 {
        return Err(format!("{}: images of {width} x {side} pixels are not square", folder.display()));
    }
    let scaled = |image: &[u8]| image.iter().map(|&value| f32::from(value) / 255.0).collect();
    Ok((values.chunks(side * side).map(scaled).collect(), side))
}

/// One label for each image.
pub(super) fn labels(folder: &Path, set: MnistSet) -> Result<Vec<i32>, String> {
    let (_, values) = read::<1>(folder, set, "labels-idx1-ubyte")?;
    Ok(values.into_iter().map(i32::from).collect())
}

fn read<const D: usize>(folder: &Path, set: MnistSet, ending: &str) -> Result<([usize; D], Vec<u8>), String> {
    let (begin, subfolder) = set.names();
    let name = format!("{begin}-{ending}");
    let places = [folder.join(&name), folder.join(subfolder).join(&name)];
    let places = places.iter().flat_map(|place| [place.clone(), place.with_added_extension("gz")]);
    let Some(file) = places.into_iter().find(|file| file.is_file()) else {
        return Err(format!(
            "{} holds no {name}: pass the folder with the four files of MNIST, as they are or with .gz",
            folder.display()
        ));
    };
    let wrong = |reason: &str| format!("{}: {reason}", file.display());
    let mut bytes = fs::read(&file).map_err(|error| wrong(&error.to_string()))?;
    if file.extension().is_some_and(|extension| extension == "gz") {
        let mut unpacked = Vec::new();
        GzDecoder::new(&*bytes).read_to_end(&mut unpacked).map_err(|error| wrong(&error.to_string()))?;
        bytes = unpacked;
    }
    let number = |at: usize| {
        let bytes: Option<[u8; 4]> = bytes.get(4 * at..4 * at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_be_bytes).ok_or_else(|| wrong("the file ends too early"))
    };
    // Two zeros, 8 for bytes, the number of dimensions.
    if number(0)? != 0x0800 + D as u32 {
        return Err(wrong("this is not a file of MNIST"));
    }
    let mut sizes = [0; D];
    for (at, size) in sizes.iter_mut().enumerate() {
        *size = number(at + 1)? as usize;
    }
    let values = bytes.split_off(4 * (D + 1));
    let expected = sizes.iter().try_fold(1_usize, |product, &size| product.checked_mul(size));
    if expected == Some(values.len()) { Ok((sizes, values)) } else { Err(wrong("its length does not match its sizes")) }
}
