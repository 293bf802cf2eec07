//! A YAML document as a tree in which every value knows its location. Values stay the text that they are written as:
//! `1.10` is not the number 1.1.
//!
//! Invariant: depth and number of nodes are bounded, and there are no aliases, so a small file stays a small tree.

use std::fmt;

use saphyr_parser::{Event, Parser, ScanError, Span, StrInput};

const DEPTH_MAX: usize = 16;
/// Most values of one document.
const NODES_MAX: usize = 10_000;

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// Line and column in the file, from 1.
    File(usize, usize),
    /// `--set` or `--input`.
    CommandLine,
    /// In an object of Kubernetes' API, which has no lines.
    Object,
}

/// A fault of the document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    pub location: Location,
    /// What is wrong, and what is right.
    pub text: String,
}

/// A value and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub location: Location,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing, or `null`.
    Null,
    /// A scalar as it is written, without quotes.
    Text(String),
    List(Vec<Node>),
    /// A mapping, in its order.
    Map(Vec<Entry>),
}

/// An entry of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    /// Where the key is.
    pub location: Location,
    pub node: Node,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(line, column) => write!(f, "{line}:{column}"),
            Self::CommandLine => f.write_str("command line"),
            Self::Object => f.write_str("object"),
        }
    }
}

impl Problem {
    /// A fault at `location`.
    pub fn new(location: Location, text: impl Into<String>) -> Self {
        Self { location, text: text.into() }
    }
}

impl Value {
    /// Its kind, for errors.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }
}

/// Reads the only document of `text`.
///
/// # Errors
/// The first fault of its syntax: what comes after it would be guesses.
pub fn parse(text: &str) -> Result<Node, Problem> {
    let mut reader = Reader { parser: Parser::new_from_str(text), nodes: 0 };
    let start = reader.next()?;
    debug_assert_eq!(start.0, Event::StreamStart, "a parser's first event");
    if let (Event::StreamEnd, span) = reader.next()? {
        return Err(Problem::new(location(span), "the file is empty"));
    }
    let root = reader.node(0)?;
    let _end = reader.next()?;
    match reader.next()? {
        (Event::StreamEnd, _) => Ok(root),
        (_, span) => {
            Err(Problem::new(location(span), "a second document begins: one file is one workflow"))
        }
    }
}

/// Reads a value of the command line.
///
/// # Errors
/// When it is not YAML.
pub fn parse_value(text: &str) -> Result<Node, Problem> {
    let mut node = match text.trim() {
        "" => Node { location: Location::CommandLine, value: Value::Text(String::new()) },
        text => parse(text)
            .map_err(|problem| Problem { location: Location::CommandLine, text: problem.text })?,
    };
    node.move_to_command_line();
    Ok(node)
}

/// A JSON value as a tree.
///
/// # Errors
/// When it is too deep or has too many values.
pub fn from_json(json: &serde_json::Value) -> Result<Node, Problem> {
    object_node(json, 0, &mut 0)
}

fn object_node(json: &serde_json::Value, depth: usize, nodes: &mut usize) -> Result<Node, Problem> {
    use serde_json::Value as Json;
    let location = Location::Object;
    *nodes += 1;
    if depth > DEPTH_MAX || *nodes > NODES_MAX {
        let text = format!("more than {DEPTH_MAX} levels, or more than {NODES_MAX} values");
        return Err(Problem::new(location, text));
    }
    let value = match json {
        Json::Null => Value::Null,
        Json::String(text) => Value::Text(text.clone()),
        Json::Bool(_) | Json::Number(_) => Value::Text(json.to_string()),
        Json::Array(items) => {
            let items = items.iter().map(|item| object_node(item, depth + 1, nodes));
            Value::List(items.collect::<Result<_, _>>()?)
        }
        Json::Object(map) => {
            let entries = map.iter().map(|(key, json)| {
                let node = object_node(json, depth + 1, nodes)?;
                Ok(Entry { key: key.clone(), location, node })
            });
            Value::Map(entries.collect::<Result<_, _>>()?)
        }
    };
    Ok(Node { location, value })
}

impl Node {
    /// The scalar that it is.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The entry of a mapping with this key.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key),
            Value::Null | Value::Text(_) | Value::List(_) => None,
        }
    }

    fn move_to_command_line(&mut self) {
        self.location = Location::CommandLine;
        match &mut self.value {
            Value::Null | Value::Text(_) => {}
            Value::List(nodes) => nodes.iter_mut().for_each(Self::move_to_command_line),
            Value::Map(entries) => {
                for entry in entries {
                    entry.location = Location::CommandLine;
                    entry.node.move_to_command_line();
                }
            }
        }
    }

    /// Sets the value at `path` (keys of mappings), and makes mappings that are missing.
    ///
    /// # Errors
    /// When a part of the path is no mapping.
    pub fn set(&mut self, path: &[&str], node: Self) -> Result<(), Problem> {
        let [key, rest @ ..] = path else {
            *self = node;
            return Ok(());
        };
        if self.value == Value::Null {
            self.value = Value::Map(Vec::new());
        }
        let Value::Map(entries) = &mut self.value else {
            let text = format!("`{key}` cannot be set: {} is there", self.value.kind());
            return Err(Problem::new(Location::CommandLine, text));
        };
        let index = entries.iter().position(|entry| entry.key == *key).unwrap_or_else(|| {
            let node = Self { location: Location::CommandLine, value: Value::Null };
            entries.push(Entry { key: (*key).to_owned(), location: Location::CommandLine, node });
            entries.len() - 1
        });
        entries[index].node.set(rest, node)
    }
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    nodes: usize,
}

fn location(span: Span) -> Location {
    Location::File(span.start.line(), span.start.col() + 1)
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Problem> {
        let fault = |error: ScanError| {
            let at = error.marker();
            Problem::new(Location::File(at.line(), at.col() + 1), error.info())
        };
        match self.parser.next_event() {
            Some(event) => event.map_err(fault),
            None => Err(Problem::new(Location::File(1, 1), "the file ends too early")),
        }
    }

    fn node(&mut self, depth: usize) -> Result<Node, Problem> {
        let (event, span) = self.next()?;
        self.rest(event, span, depth)
    }

    fn rest(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, Problem> {
        let location = location(span);
        self.nodes += 1;
        if depth > DEPTH_MAX || self.nodes > NODES_MAX {
            let limits = format!("more than {DEPTH_MAX} levels or {NODES_MAX} values");
            return Err(Problem::new(location, limits));
        }
        let value = match event {
            Event::Scalar(text, style, _, _) => {
                let plain = style == saphyr_parser::ScalarStyle::Plain;
                match text.as_ref() {
                    "" | "~" | "null" if plain => Value::Null,
                    text => Value::Text(text.to_owned()),
                }
            }
            Event::SequenceStart(..) => Value::List(self.list(depth)?),
            Event::MappingStart(..) => Value::Map(self.map(depth)?),
            Event::Alias(_) => {
                return Err(Problem::new(location, "an alias (`*name`): write the value itself"));
            }
            _ => return Err(Problem::new(location, "a value is missing")),
        };
        Ok(Node { location, value })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Problem> {
        let mut nodes = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(nodes),
                (event, span) => nodes.push(self.rest(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<Entry>, Problem> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let (event, span) = self.next()?;
            let location = location(span);
            let key = match event {
                Event::MappingEnd => return Ok(entries),
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err(Problem::new(location, "a key must be a text")),
            };
            if key == "<<" {
                return Err(Problem::new(
                    location,
                    "a merge key (`<<`): write the fields themselves",
                ));
            }
            if entries.iter().any(|entry| entry.key == key) {
                return Err(Problem::new(location, format!("`{key}` is there twice")));
            }
            let node = self.node(depth + 1)?;
            entries.push(Entry { key, location, node });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(node: &Node, key: &str) -> (Location, Value) {
        let Value::Map(entries) = &node.value else { panic!("{node:?}") };
        let entry = entries.iter().find(|entry| entry.key == key).unwrap();
        (entry.node.location, entry.node.value.clone())
    }

    #[test]
    fn values_have_their_text_and_place() {
        let node = parse("a: 1.10\nb:\n  - x\n  - 'null'\nc: null\nd: |\n  e\n").unwrap();
        assert_eq!(text(&node, "a"), (Location::File(1, 4), Value::Text("1.10".into())));
        let Value::List(list) = text(&node, "b").1 else { panic!("no list") };
        assert_eq!(
            (list[1].location, &list[1].value),
            (Location::File(4, 5), &Value::Text("null".into()))
        );
        assert_eq!(text(&node, "c").1, Value::Null);
        assert_eq!(text(&node, "d").1, Value::Text("e\n".into()));
    }

    #[test]
    fn faults_of_the_syntax_have_a_place() {
        for (yaml, location, part) in [
            ("a: 1\na: 2\n", Location::File(2, 1), "`a` is there twice"),
            ("a: [1, 2\nb: 3", Location::File(2, 2), ""),
            ("a: &x 1\nb: *x\n", Location::File(2, 4), "an alias"),
            ("a: {<<: {b: 1}}\n", Location::File(1, 5), "a merge key"),
            ("a: 1\n---\nb: 2\n", Location::File(2, 1), "a second document"),
            ("# only a comment\n", Location::File(2, 1), "the file is empty"),
        ] {
            let problem = parse(yaml).unwrap_err();
            assert!(problem.text.contains(part), "{yaml}: {problem:?}");
            assert_eq!(problem.location, location, "{yaml}: {problem:?}");
        }
        let deep = "[".repeat(DEPTH_MAX + 2);
        assert!(parse(&deep).unwrap_err().text.contains("levels"));
    }

    #[test]
    fn the_command_line_sets_values() {
        let mut node = parse("a:\n  b: 1\n").unwrap();
        node.set(&["a", "b"], parse_value("2").unwrap()).unwrap();
        node.set(&["x", "y"], parse_value("[p, q]").unwrap()).unwrap();
        let Value::Map(inner) = text(&node, "a").1 else { panic!("no mapping") };
        assert_eq!(
            inner[0].node,
            Node { location: Location::CommandLine, value: Value::Text("2".into()) }
        );
        assert!(matches!(text(&node, "x").1, Value::Map(_)));
        let problem = node.set(&["a", "b", "c"], parse_value("3").unwrap()).unwrap_err();
        assert_eq!(problem.text, "`c` cannot be set: a text is there");
    }
}
