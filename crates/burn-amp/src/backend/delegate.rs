//! The macros that delegate ops to the inner backend, named by what they do to the operands.

/// Passes every argument on as it is.
macro_rules! forward {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?;)*) => {$(
        fn $name($($arg: $ty),*) $(-> $ret)? {
            B::$name($($arg),*)
        }
    )*};
}

/// Casts the float operands in brackets (optional ones behind a semicolon) as the op's rule says;
/// the result is a float tensor.
macro_rules! cast {
    ($(fn $name:ident[$($x:ident),+ $(; $($opt:ident),+)?]
        ($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty;)*) => {$(
        fn $name($($arg: $ty),*) -> $ret {
            if operands::pass::<B, _, _>([$(&$x),+], [$($($opt.as_ref()),+)?]) {
                return B::$name($($arg),*);
            }
            let ([$($x),+], [$($($opt),+)?], store) =
                operands::cast::<B, _, _>(Op::$name, [$($x),+], [$($($opt),+)?]);
            store.finish::<B>(B::$name($($arg),*))
        }
    )*};
}

/// As [`cast`]; where the rule lowers the op, our own runs, which takes operands in any type.
macro_rules! lower {
    ($(fn $name:ident = $lowered:ident[$($x:ident),+ $(; $opt:ident)?]
        ($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty;)*) => {$(
        fn $name($($arg: $ty),*) -> $ret {
            if operands::pass::<B, _, _>([$(&$x),+], [$($opt.as_ref())?]) {
                return B::$name($($arg),*);
            }
            let rule = operands::lowered::<B, _, _>(Op::$name, [$(&$x),+], [$($opt.as_ref())?]);
            if let Some(compute) = rule {
                return B::$lowered($($arg,)* compute);
            }
            let ([$($x),+], [$($opt)?], store) =
                operands::cast::<B, _, _>(Op::$name, [$($x),+], [$($opt)?]);
            store.finish::<B>(B::$name($($arg),*))
        }
    )*};
}

/// As [`cast`], for results that are not one float tensor: they keep the type they come in.
macro_rules! cast_inputs {
    ($(fn $name:ident[$($x:ident),+ $(; $($opt:ident),+)?]
        ($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty;)*) => {$(
        fn $name($($arg: $ty),*) -> $ret {
            if operands::pass::<B, _, _>([$(&$x),+], [$($($opt.as_ref()),+)?]) {
                return B::$name($($arg),*);
            }
            let ([$($x),+], [$($($opt),+)?], _) =
                operands::cast::<B, _, _>(Op::$name, [$($x),+], [$($($opt),+)?]);
            B::$name($($arg),*)
        }
    )*};
}

/// As [`cast`], and where two types meet the full-shape operand decides the type of the result.
macro_rules! elementwise {
    ($(fn $name:ident($lhs:ident, $rhs:ident);)*) => {$(
        fn $name($lhs: FloatTensor<Self>, $rhs: FloatTensor<Self>) -> FloatTensor<Self> {
            if operands::pass::<B, 2, 0>([&$lhs, &$rhs], []) {
                return B::$name($lhs, $rhs);
            }
            let ([$lhs, $rhs], store) = operands::elementwise::<B>(Op::$name, [$lhs, $rhs], None);
            store.finish::<B>(B::$name($lhs, $rhs))
        }
    )*};
}

/// As [`cast`], with a scalar that is applied in f32 where the tensor's type cannot hold it.
macro_rules! with_scalar {
    ($(fn $name:ident($x:ident, $scalar:ident $(, $more:ident)*);)*) => {$(
        fn $name(
            $x: FloatTensor<Self>,
            $scalar: Scalar,
            $($more: Scalar),*
        ) -> FloatTensor<Self> {
            if operands::pass::<B, 1, 0>([&$x], []) {
                return B::$name($x, $scalar $(, $more)*);
            }
            let ($x, store) = scalar::operand::<B>(Op::$name, $x, &[$scalar $(, $more)*]);
            store.finish::<B>(B::$name($x, $scalar $(, $more)*))
        }
    )*};
}

pub(super) use {cast, cast_inputs, elementwise, forward, lower, with_scalar};
