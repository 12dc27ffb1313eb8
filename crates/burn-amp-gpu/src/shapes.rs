//! The shapes that are multiplied, and the tensors of GPT-2.

/// What a product is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Half activations times f32 weights, stored in the half type.
    Forward,
    /// Transposed half activations times half gradients, stored in f32.
    WeightGradient,
}

impl Kind {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::WeightGradient => "weight gradient",
        }
    }
}

/// A product to time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The family: shapes of one family take the same routines.
    pub group: &'static str,
    /// What it is for.
    pub kind: Kind,
    /// Rows, length of the sums, columns.
    pub dims: [usize; 3],
    /// Whether it is measured first and in every way.
    pub first: bool,
}

const WIDTH: usize = 768;
/// Columns after the query-key-value product, a projection, the MLP and the output layer of GPT-2.
const COLUMNS: [usize; 4] = [3 * WIDTH, WIDTH, 4 * WIDTH, VOCABULARY];
/// The vocabulary of GPT-2: an odd number, so that no row but the first begins at an aligned address.
pub const VOCABULARY: usize = 50257;

/// All shapes: those that count first.
pub fn all() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for rows in [8192, 1024, 128, 16] {
        for columns in COLUMNS {
            shapes.push(Shape {
                group: if columns == VOCABULARY {
                    "GPT-2 head"
                } else {
                    "GPT-2"
                },
                kind: Kind::Forward,
                dims: [rows, WIDTH, columns],
                first: rows == 8192 && columns != WIDTH,
            });
        }
    }
    for size in [4096, 8192, 2048, 1024] {
        shapes.push(Shape {
            group: "square",
            kind: Kind::Forward,
            dims: [size; 3],
            first: size == 4096,
        });
    }
    for rows in [8, 1, 32, 64] {
        for columns in [4096, 11008] {
            shapes.push(Shape {
                group: if rows == 1 { "one row" } else { "few rows" },
                kind: Kind::Forward,
                dims: [rows, 4096, columns],
                first: rows == 8 && columns == 4096,
            });
        }
    }
    for columns in [3 * WIDTH, VOCABULARY] {
        shapes.push(Shape {
            group: if columns == VOCABULARY {
                "weight gradient, head"
            } else {
                "weight gradient"
            },
            kind: Kind::WeightGradient,
            dims: [WIDTH, 8192, columns],
            first: columns != VOCABULARY,
        });
    }
    shapes.sort_by_key(|shape| !shape.first);
    shapes
}

/// A few that any device multiplies in no time.
pub fn quick() -> Vec<Shape> {
    let shape = |group, kind, dims| Shape {
        group,
        kind,
        dims,
        first: true,
    };
    vec![
        shape("square", Kind::Forward, [64; 3]),
        shape("few rows", Kind::Forward, [4, 48, 80]),
        shape("weight gradient", Kind::WeightGradient, [32, 64, 48]),
    ]
}

/// The lengths of GPT-2's parameters, as its gradients have them: 148 of them, 124 million values.
pub fn gpt2_parameters() -> Vec<usize> {
    let mut lengths = vec![VOCABULARY * WIDTH, 1024 * WIDTH];
    for _ in 0..12 {
        lengths.extend([WIDTH, WIDTH]);
        lengths.extend([WIDTH * 3 * WIDTH, 3 * WIDTH, WIDTH * WIDTH, WIDTH]);
        lengths.extend([WIDTH, WIDTH]);
        lengths.extend([WIDTH * 4 * WIDTH, 4 * WIDTH, 4 * WIDTH * WIDTH, WIDTH]);
    }
    lengths.extend([WIDTH, WIDTH]);
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn should_have_the_parameters_of_gpt2() {
        let lengths = gpt2_parameters();
        assert_eq!(lengths.len(), 148);
        assert_eq!(lengths.iter().sum::<usize>(), 124_439_808);
    }

    #[test]
    fn should_begin_with_those_that_count() {
        let shapes = all();
        let firsts = shapes.iter().filter(|shape| shape.first).count();
        assert!(shapes[..firsts].iter().all(|shape| shape.first));
        assert!((4..=8).contains(&firsts), "{firsts}");
    }

    #[test]
    fn should_not_repeat_a_product() {
        let shapes = all();
        for (index, shape) in shapes.iter().enumerate() {
            let same = |other: &&Shape| other.dims == shape.dims && other.kind == shape.kind;
            assert!(shapes[index + 1..].iter().find(same).is_none(), "{shape:?}");
        }
    }
}
