//! Products have more dimensions than can be crossed: each type, result, bias and layout occurs with
//! the strategies, but not with each other.

use burn_amp_kernels::matmul::{Product, Routine, Strategy, Tile, matmul};
use burn_amp_kernels::{DeviceTensor, FloatType};

use super::{Case, Operation, Run, name};
use FloatType::{BF16, F16, F32};

impl Run {
    pub(super) fn products(&mut self) {
        for compute in [F16, BF16] {
            let table = operands(compute);
            for strategy in strategies() {
                let rows: &[usize] = match strategy {
                    // Operands are cast before: only the layout and the result change the kernel.
                    Strategy::CastThen(Routine::Ordered { .. }) => &[2],
                    Strategy::CastThen(_) => &[0, 2, 4, 5],
                    // What is loaded and stored is as without several rows, and that has all.
                    Strategy::Fused(Routine::Simple {
                        multi_rows: true,
                        tile: Tile::Cmma,
                    }) => &[0],
                    Strategy::Fused(Routine::Unit) => &[0, 1, 2],
                    _ => &[0, 1, 2, 3, 4, 5],
                };
                for row in rows {
                    self.product(compute, strategy, &table[*row]);
                }
            }
        }
    }

    fn product(&mut self, compute: FloatType, strategy: Strategy, row: &Operands) {
        let [lhs, rhs, out] = row.types.map(name);
        let [m, k, n] = row.shape.sizes();
        let case = Case {
            operation: Operation::Matmul,
            types: format!("{lhs} {rhs} {out} in {}", name(compute)),
            detail: format!("{m}x{k}x{n}{}{}", row.shape.suffix(), row.bias_suffix()),
            strategy: Some(strategy),
            compute: Some(compute),
        };
        self.case(case, |client| {
            let [lhs, rhs, out] = row.types;
            let rhs = match row.shape {
                Shape::RhsTransposed => DeviceTensor::empty(client, [n, k], rhs).transposed(),
                _ => DeviceTensor::empty(client, [k, n], rhs),
            };
            let product = Product {
                lhs: DeviceTensor::empty(client, [m, k], lhs),
                rhs,
                bias: row.bias.then(|| DeviceTensor::empty(client, [n], F32)),
                compute,
                out,
            };
            matmul(client, &product, strategy).map(drop)
        });
    }
}

#[derive(Debug, Clone, Copy)]
enum Shape {
    Square,
    RhsTransposed,
    Odd,
}

impl Shape {
    fn sizes(self) -> [usize; 3] {
        match self {
            Self::Square | Self::RhsTransposed => [1024; 3],
            Self::Odd => [1023, 765, 1021],
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Self::RhsTransposed => " rhs transposed",
            Self::Square | Self::Odd => "",
        }
    }
}

/// The types of lhs, rhs and result, and what the epilogue and the loads depend on.
struct Operands {
    types: [FloatType; 3],
    shape: Shape,
    bias: bool,
}

impl Operands {
    fn bias_suffix(&self) -> &'static str {
        if self.bias { " bias" } else { "" }
    }
}

fn operands(half: FloatType) -> Vec<Operands> {
    use Shape::{Odd, RhsTransposed, Square};
    [
        ([half, half, half], RhsTransposed, true),
        ([half, half, F32], Odd, false),
        ([F32, F32, half], Square, true),
        ([half, F32, half], RhsTransposed, false),
        ([F32, half, F32], Square, false),
        ([F32, F32, F32], Odd, true),
    ]
    .into_iter()
    .map(|(types, shape, bias)| Operands { types, shape, bias })
    .collect()
}

fn strategies() -> Vec<Strategy> {
    let mut strategies = vec![Strategy::Naive, Strategy::Fused(Routine::Unit)];
    for tile in [Tile::Cmma, Tile::Mma] {
        let fused = [
            Routine::Simple {
                tile,
                multi_rows: false,
            },
            Routine::Simple {
                tile,
                multi_rows: true,
            },
            Routine::DoubleBuffered {
                tile,
                specialized: false,
            },
            Routine::Ordered { tile, rows: 8 },
        ];
        strategies.extend(fused.map(Strategy::Fused));
        let after_cast = [
            Routine::Ordered { tile, rows: 8 },
            Routine::Tma {
                tile,
                multi_rows: true,
            },
            Routine::SpecializedTma { tile },
        ];
        strategies.extend(after_cast.map(Strategy::CastThen));
    }
    strategies
}
