//! Weights of tenants: what may stand there, and what `check` says of it.

use super::{ROUTE, mistakes, settings};
use crate::config::describe;

#[test]
fn a_weight_is_from_1_to_100() {
    for (text, at) in [("default: {weight: 0}", "1:29: tenants.default"), ("acme: {weight: 101}", "1:26: tenants.acme")]
    {
        let found = mistakes(&format!("tenants: {{{text}}}\n{ROUTE}"));
        let bad = text.split(['}', ' ']).nth(2).unwrap();
        assert_eq!(found, [format!("{at}.weight: `{bad}` is not between 1 and 100")], "{text}");
    }
}

#[test]
fn a_weight_is_inherited_and_shown_where_it_matters() {
    let said = |text: &str| describe(&settings(&format!("tenants: {{{text}}}\n{ROUTE}")));
    let plain = said("acme: {weight: 1}");
    assert!(!plain.contains("weight"), "{plain}");
    let weighted = said("default: {weight: 5}, acme: {weight: 100}, other: {}");
    let lines: Vec<&str> = weighted.lines().filter(|line| line.contains("tasks running")).collect();
    let said: Vec<&str> = lines.iter().map(|line| line.rsplit("; ").next().unwrap()).collect();
    assert_eq!(said, ["weight 5", "weight 100", "weight 5"], "{weighted}");
}
