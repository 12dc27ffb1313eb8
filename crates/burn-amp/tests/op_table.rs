//! The op table against the sources of Burn's traits, and its names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use burn_amp::{Op, OpClass, UnknownOp};
use syn::{ImplItem, Item, TraitItem, Type};

const OP_TRAITS: [&str; 7] = [
    "FloatTensorOps",
    "ActivationOps",
    "ModuleOps",
    "IntTensorOps",
    "BoolTensorOps",
    "QTensorOps",
    "TransactionOps",
];

const BACKEND_TRAITS: [&str; 3] = ["Backend", "AutodiffBackend", "DistributedBackend"];

/// Bodies of Burn's that ask the pointer they are given, and not the backend's rules.
const LEFT_TO_BURN: [&str; 2] = ["comm_device", "float_from_ref"];

/// Method names by trait.
type Methods = BTreeMap<String, BTreeSet<String>>;

/// Where cargo keeps the sources of the burn-backend that this crate is built with.
fn burn_backend_sources() -> PathBuf {
    let version = run_cargo(&["--version", "--verbose"]);
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .expect("cargo names its host");
    // Offline, only the packages of this platform need be there.
    let metadata = run_cargo(&[
        "metadata",
        "--offline",
        "--format-version=1",
        "--filter-platform",
        host,
    ]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).expect("cargo prints JSON");
    let manifest = metadata["packages"]
        .as_array()
        .expect("a list of packages")
        .iter()
        .find(|package| package["name"] == "burn-backend" && package["version"] == "0.21.0")
        .and_then(|package| package["manifest_path"].as_str())
        .expect("burn-backend 0.21.0 is a dependency");
    Path::new(manifest).with_file_name("src")
}

fn run_cargo(args: &[&str]) -> String {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "cargo {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("cargo prints UTF-8")
}

/// The items of every Rust file below a folder.
fn items(folder: &Path) -> Vec<Item> {
    let mut items = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            items.extend(self::items(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = std::fs::read_to_string(&path).expect("a readable file");
            let file = syn::parse_file(&source)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            items.extend(file.items);
        }
    }
    items
}

/// The methods that Burn's traits declare, those of distributed training included.
fn declared(traits: &[&str]) -> Methods {
    let mut methods = Methods::new();
    for item in items(&burn_backend_sources()) {
        if let Item::Trait(item) = item
            && traits.contains(&item.ident.to_string().as_str())
        {
            let names = item.items.iter().filter_map(|method| match method {
                TraitItem::Fn(method) => Some(method.sig.ident.to_string()),
                _ => None,
            });
            let first = methods.insert(item.ident.to_string(), names.collect());
            assert_eq!(first, None, "two traits called {}", item.ident);
        }
    }
    methods
}

/// The methods that `Amp` has bodies for, those from macros included.
fn delegated(traits: &[&str]) -> Methods {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut methods = Methods::new();
    for item in items(&sources) {
        let Item::Impl(item) = item else { continue };
        let Some((_, path, _)) = &item.trait_ else {
            continue;
        };
        let name = last_segment(path);
        let is_amp = matches!(&*item.self_ty, Type::Path(ty) if last_segment(&ty.path) == "Amp");
        if !is_amp || !traits.contains(&name.as_str()) {
            continue;
        }
        let names = methods.entry(name).or_default();
        for item in item.items {
            match item {
                ImplItem::Fn(method) => {
                    names.insert(method.sig.ident.to_string());
                }
                ImplItem::Macro(invocation) => names.extend(functions(invocation.mac.tokens)),
                _ => {}
            }
        }
    }
    methods
}

fn last_segment(path: &syn::Path) -> String {
    path.segments
        .last()
        .expect("a path has a segment")
        .ident
        .to_string()
}

/// Every identifier after an `fn`.
fn functions(tokens: impl IntoIterator<Item = impl ToString>) -> Vec<String> {
    let tokens: Vec<String> = tokens.into_iter().map(|token| token.to_string()).collect();
    tokens
        .windows(2)
        .filter(|pair| pair[0] == "fn")
        .map(|pair| pair[1].clone())
        .collect()
}

fn check_same(subject: &str, actual: &Methods, expected: &Methods) {
    for (owner, expected) in expected {
        let actual = &actual[owner];
        let missing: Vec<_> = expected.difference(actual).collect();
        let unknown: Vec<_> = actual.difference(expected).collect();
        assert!(
            missing.is_empty() && unknown.is_empty(),
            "{subject} for {owner}: missing {missing:?}, unknown {unknown:?}"
        );
    }
}

#[test]
fn should_list_every_method_of_burns_op_traits_and_no_other() {
    let mut table = Methods::new();
    for op in Op::ALL {
        let is_new = table
            .entry(op.owner().to_owned())
            .or_default()
            .insert(op.name().to_owned());
        assert!(is_new, "{op} is listed twice");
    }
    let declared = declared(&OP_TRAITS);

    assert_eq!(declared.len(), OP_TRAITS.len());
    assert_eq!(table.len(), OP_TRAITS.len());
    check_same("the op table", &table, &declared);
    assert_eq!(Op::COUNT, 418);
}

#[test]
fn should_delegate_every_method_so_that_no_default_body_reenters_the_rules() {
    let traits = [OP_TRAITS.as_slice(), BACKEND_TRAITS.as_slice()].concat();

    let mut declared = declared(&traits);

    assert_eq!(declared.len(), traits.len());
    for methods in declared.values_mut() {
        methods.retain(|name| !LEFT_TO_BURN.contains(&name.as_str()));
    }
    check_same("delegation", &delegated(&traits), &declared);
}

#[test]
fn should_class_what_pytorch_lists_for_cuda_as_pytorch_does() {
    let pytorch = [
        (
            OpClass::Lower,
            "matmul prelu linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d \
             conv_transpose3d attention",
        ),
        (
            OpClass::Full,
            "exp log log1p recip powf powf_scalar powi powi_scalar tan cosh sinh acos asin sum \
             sum_dim prod prod_dim cumsum cumprod softmax log_softmax layer_norm interpolate",
        ),
        (
            OpClass::Promote,
            "atan2 cross scatter_add scatter_nd grid_sample_2d",
        ),
        (
            OpClass::Keep,
            "relu leaky_relu neg abs sin cos tanh erf max_dim sort reshape slice gather select \
             mask_fill mul_scalar max_pool2d",
        ),
    ];
    for (class, names) in pytorch {
        for name in names.split_whitespace() {
            assert_eq!(Op::find(name).unwrap().class(), class, "{name}");
        }
    }
}

#[test]
fn should_find_ops_with_and_without_the_prefix_and_print_the_full_name() {
    for op in Op::ALL {
        assert_eq!(Op::find(op.name()), Ok(*op));
        assert_eq!(op.to_string().parse(), Ok(*op));
        assert_eq!(op.to_string(), op.name());
    }
    assert_eq!(Op::find("matmul"), Ok(Op::float_matmul));
    assert_eq!(Op::find("softmax"), Ok(Op::softmax));
    assert!(
        Op::find("FLOAT_MATMUL").is_err(),
        "names are case sensitive"
    );
}

#[test]
fn should_survive_serialisation_by_name() {
    for op in Op::ALL {
        let json = serde_json::to_string(op).unwrap();
        assert_eq!(json, format!("\"{}\"", op.name()));
        assert_eq!(serde_json::from_str::<Op>(&json).unwrap(), *op);
    }
    let error = serde_json::from_str::<Op>("\"matmull\"").unwrap_err();
    assert!(error.to_string().contains("float_matmul"), "{error}");
}

#[test]
fn should_suggest_the_nearest_names_first() {
    for (typo, nearest) in [
        ("matmull", "float_matmul"),
        ("float_matmull", "float_matmul"),
        ("softmaks", "softmax"),
        ("layernorm", "layer_norm"),
        ("conv2", "conv2d"),
        ("exponent", "float_exp"),
    ] {
        let error = Op::find(typo).unwrap_err();
        assert_eq!(error.name, typo);
        assert_eq!(error.nearest[0], nearest, "{typo}: {error}");
        assert_eq!(error.nearest.len(), 3);
    }
    let UnknownOp { nearest, .. } = Op::find("matmull").unwrap_err();
    assert_eq!(
        Op::find("matmull").unwrap_err().to_string(),
        format!(
            "unknown op `matmull`, nearest names: {}",
            nearest.join(", ")
        )
    );
}

#[test]
fn should_not_suggest_ops_that_the_rules_never_touch() {
    for op in Op::ALL {
        let Err(error) = Op::find(&format!("{op}s")) else {
            continue;
        };
        for name in error.nearest {
            assert_ne!(
                Op::find(name).unwrap().class(),
                OpClass::Exempt,
                "{op}s: {name}"
            );
        }
    }
}
