//! Commands in documents: blocks of code, lines that go on, words in quotes.

/// The contents of the code blocks of one language.
pub(crate) fn blocks(document: &str, language: &str) -> Vec<String> {
    let open = format!("```{language}");
    let mut found = Vec::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if line.trim_end() == open {
            found.push(lines.by_ref().take_while(|line| *line != "```").collect::<Vec<_>>().join("\n"));
        }
    }
    found
}

/// The commands of a block.
pub(crate) fn lines(block: &str) -> Vec<String> {
    let joined = block.replace("\\\n", " ");
    joined.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

/// The words of a command, as a shell takes them apart.
pub(crate) fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (c, quote) {
            ('#', None) if word.is_none() => break,
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, Some(open)) if c == open => quote = None,
            (' ', None) => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    assert!(quote.is_none(), "a quote is open: {line}");
    words.extend(word);
    words
}

#[test]
fn commands_are_taken_apart() {
    assert_eq!(split(r#"a --b '{"c": 1}' "d e" '' # f"#), ["a", "--b", r#"{"c": 1}"#, "d e", ""]);
    assert_eq!(lines("a \\\n  b\n\n# c\nd"), ["a    b", "d"]);
    assert_eq!(blocks("x\n```sh\na\nb\n```\n```text\nc\n```\n", "sh"), ["a\nb"]);
}
