use super::*;
#[test]
fn scratch() {
    let text = r#"
listen:
  adress: 127.0.0.1:8080
  max_body: 16MB
  tls: {cert: a, key: b}
admin: {address: 0.0.0.0:9090}
secrets: {key: ${KEY}, previous: ["x"]}
store: {kind: redis}
auth:
tenants: {acme: {running_tasks: 0, kept_bytes: 3}}
deadline: 5m
routes:
  - name: reports
    path: /reports/mcp
    path: /x
    upstream:
      url: ftp://10.0.0.7:9000/mcp
      era: modrn
      headers: {X-Api-Key: ${REPORTS_KEY}, Host: a, Mcp-Session-Id: x}
      pass_authorization: true
    tools: {deny: "admin_*"}
    tasks:
      deadline: 30h
      tools:
        - {match: "render_*", support: requird, ttl: {default: 12h}}
        - {match: ping, support: forbidden, deadline: 25x}
  - 5
  - {path: a b, name: "r r", upstream: {}, url: http://x/}
"#;
    println!("{}", parse(text, "f.yaml", Path::new(""), &|_| None).unwrap_err());
    println!("{}", describe(&parse("routes: [{name: a, path: /mcp, upstream: {url: 'http://x/y?k=1', headers: {A: ${B}}}, tasks: {tools: [{match: 'a*', deadline: 6h}]}}]", "f.yaml", Path::new(""), &|_| Some("zz".into())).unwrap()));
    println!("{}", Settings::for_command(vec![]).unwrap_err());
    println!("{}", Settings::for_upstream_url("x").unwrap_err());
    println!("{}", describe(&Settings::for_command(vec!["python".into(), "x".into()]).unwrap()));
    println!("{}", parse("a: [", "f.yaml", Path::new(""), &|_| None).unwrap_err());
    println!("{}", parse("a: {b: ${C, d: e}", "f.yaml", Path::new(""), &|_| None).unwrap_err());
}
