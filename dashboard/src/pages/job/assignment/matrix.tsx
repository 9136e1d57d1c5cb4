// Tasks by nodes: what each node has of each task.
import { Button, Table } from "@mantine/core";
import { useState, type ReactNode } from "react";

export interface Cell {
  readonly role: "active" | "standby" | "warm-up" | "kept";
  readonly note?: string;
  /** It was not so before. */
  readonly isNew?: boolean;
}

export interface Column {
  readonly node: string;
  readonly name: string;
  readonly note: string;
}

const MOST_ROWS = 64;
const WORDS = { active: "runs", standby: "standby", "warm-up": "warm-up", kept: "kept" };

export function Matrix(props: {
  caption: string;
  tasks: readonly string[];
  columns: readonly Column[];
  cell: (task: string, node: string) => Cell | null;
  beside?: (task: string) => ReactNode;
}) {
  const { caption, tasks, columns, cell, beside } = props;
  const [isWhole, setWhole] = useState(false);
  const shown = isWhole ? tasks : tasks.slice(0, MOST_ROWS);
  return (
    <>
      <div className="scrolled" role="region" aria-label={caption} tabIndex={0}>
        <Table verticalSpacing={4} className="assignment-matrix">
          <Table.Thead>
            <Table.Tr>
              <Table.Th scope="col">task</Table.Th>
              {columns.map(({ node, name, note }) => (
                <Table.Th scope="col" key={node} title={node}>
                  <span className="breakable">{name}</span>
                  <small>{note}</small>
                </Table.Th>
              ))}
              {beside !== undefined && <Table.Th scope="col">now</Table.Th>}
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {shown.map((task) => (
              <Table.Tr key={task}>
                <Table.Th scope="row">{task}</Table.Th>
                {columns.map(({ node }) => {
                  const found = cell(task, node);
                  return (
                    <Table.Td key={node}>
                      {found === null ? (
                        <span aria-hidden>·</span>
                      ) : (
                        <>
                          <span className={`badge assignment-${found.role}`}>
                            {WORDS[found.role]}
                            {found.isNew && " (new)"}
                          </span>
                          {found.note !== undefined && <small>{found.note}</small>}
                        </>
                      )}
                    </Table.Td>
                  );
                })}
                {beside !== undefined && <Table.Td>{beside(task)}</Table.Td>}
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      </div>
      {tasks.length > shown.length && (
        <Button size="compact-sm" variant="default" mt="xs" onClick={() => setWhole(true)}>
          show the other {tasks.length - shown.length} tasks
        </Button>
      )}
    </>
  );
}
