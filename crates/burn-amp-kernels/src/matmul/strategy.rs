use std::fmt;
use std::sync::OnceLock;

#[cfg(not(feature = "autotune"))]
use cubecl::prelude::*;

#[cfg(not(feature = "autotune"))]
use super::Product;
#[cfg(not(feature = "autotune"))]
use crate::DeviceTensor;

/// How a product is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// The fastest, timed once for each kind of product with the `autotune` feature, by rule without.
    ///
    /// The environment variable `BURN_AMP_MATMUL` overrides the choice, with `naive`, or `fused` or
    /// `cast` for the simple tiled routine with operands cast on load or before.
    #[default]
    Auto,
    /// Operands are cast as they are loaded.
    Fused(Routine),
    /// Operands that are not in the compute type are cast by kernels of their own before.
    CastThen(Routine),
    /// A unit for each result, for any strides and on any device: slow, but compiled in no time.
    Naive,
}

/// A way to cut a product into tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routine {
    /// Multiplies in registers, on devices without tensor cores.
    Unit,
    /// Loads a tile, multiplies, loads the next.
    Simple {
        /// The instructions.
        tile: Tile,
        /// Whether a plane multiplies several rows of tiles.
        multi_rows: bool,
    },
    /// Loads the next tile while one is multiplied.
    DoubleBuffered {
        /// The instructions.
        tile: Tile,
        /// Whether planes either load or multiply.
        specialized: bool,
    },
    /// As double buffered, with the left operand loaded by the planes that multiply it.
    Ordered {
        /// The instructions.
        tile: Tile,
        /// Rows of tiles in a cube.
        rows: u32,
    },
    /// Loads by the tensor memory accelerator, which casts nothing: for operands in the compute type.
    Tma {
        /// The instructions.
        tile: Tile,
        /// Whether a plane multiplies several rows of tiles.
        multi_rows: bool,
    },
    /// The same, with planes that either load or multiply.
    SpecializedTma {
        /// The instructions.
        tile: Tile,
    },
}

/// The instructions that multiply tiles on tensor cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tile {
    /// Cooperative matrices: `wmma` in CUDA.
    Cmma,
    /// `mma`, with registers laid out by the kernel; CUDA only.
    Mma,
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fused(routine) => write!(f, "fused {routine}"),
            Self::CastThen(routine) => write!(f, "cast, then {routine}"),
            Self::Naive => f.write_str("naive"),
        }
    }
}

impl fmt::Display for Routine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let option = |set: bool, name: &'static str| if set { name } else { "" };
        match self {
            Self::Unit => f.write_str("unit"),
            Self::Simple { tile, multi_rows } => {
                write!(f, "simple {tile}{}", option(*multi_rows, " multi-rows"))
            }
            Self::DoubleBuffered { tile, specialized } => {
                write!(f, "double {tile}{}", option(*specialized, " specialized"))
            }
            Self::Ordered { tile, rows } => write!(f, "ordered {tile} {rows} rows"),
            Self::Tma { tile, multi_rows } => {
                write!(f, "tma {tile}{}", option(*multi_rows, " multi-rows"))
            }
            Self::SpecializedTma { tile } => write!(f, "specialized tma {tile}"),
        }
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cmma => "cmma",
            Self::Mma => "mma",
        })
    }
}

/// The routine for a name in the environment variable.
const BY_HAND: Routine = Routine::Simple {
    tile: Tile::Cmma,
    multi_rows: false,
};

/// What `BURN_AMP_MATMUL` asks for.
///
/// # Panics
///
/// If it names no strategy.
pub(super) fn from_environment() -> Option<Strategy> {
    static STRATEGY: OnceLock<Option<Strategy>> = OnceLock::new();
    *STRATEGY.get_or_init(|| {
        let name = std::env::var("BURN_AMP_MATMUL").ok()?;
        parse(&name).unwrap_or_else(|| {
            panic!("BURN_AMP_MATMUL has to be auto, naive, fused or cast, got {name:?}")
        })
    })
}

fn parse(name: &str) -> Option<Option<Strategy>> {
    match name {
        "auto" => Some(None),
        "naive" => Some(Some(Strategy::Naive)),
        "fused" => Some(Some(Strategy::Fused(BY_HAND))),
        "cast" => Some(Some(Strategy::CastThen(BY_HAND))),
        _ => None,
    }
}

/// Below this many multiplications a tile would be mostly empty.
#[cfg(not(feature = "autotune"))]
const SMALL: usize = 1 << 13;

/// What is tried, in this order, where nothing is timed.
#[cfg(not(feature = "autotune"))]
pub(super) fn by_rule<R: Runtime>(
    client: &ComputeClient<R>,
    product: &Product,
    output: &DeviceTensor,
) -> Vec<Strategy> {
    if product.work(output) < SMALL {
        return Vec::new();
    }
    let matmul = &client.properties().features.matmul;
    let mut routines = Vec::new();
    if !matmul.mma.is_empty() {
        routines.push(Routine::Simple {
            tile: Tile::Mma,
            multi_rows: false,
        });
    }
    if !matmul.cmma.is_empty() {
        routines.push(BY_HAND);
    }
    routines.push(Routine::Unit);
    routines.into_iter().map(Strategy::Fused).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_names_a_strategy_or_none() {
        assert_eq!(parse("auto"), Some(None));
        assert_eq!(parse("naive"), Some(Some(Strategy::Naive)));
        assert_eq!(parse("fused"), Some(Some(Strategy::Fused(BY_HAND))));
        assert_eq!(parse("cast"), Some(Some(Strategy::CastThen(BY_HAND))));
        assert_eq!(parse("fast"), None);
    }
}
